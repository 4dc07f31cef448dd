// The all-reduce in memory that the ranks of a node share, as one call: come, wait for all, run the operations of this
// rank's chunk, leave, wait for all. Compiled once a library, not once a type.
//
// Its operations are the plan's (collectives/execution/fused_plan.py), in their order. They run on a piece of the chunk
// after another: what an addition has written is in the cache when it is read again, and a line that it has read of
// another rank has not been taken back by then.
#include "halves.hpp"
#include "threads.hpp"
#include "waits.hpp"

constexpr Int PIECE = 4 * 1024;  // bytes of each array

namespace {

enum State : Int { IDLE, COMING, LEAVING };
enum Type : Int { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, INT64 };
enum Action : Int { COPY, SUM, MAX, MIN };

struct Operation { Action action; char *target, *source; };

// In the caller's memory: a call that has waited long enough ends there, and the next goes on.
struct Job {
  State state;
  Patience patience;  // of a call that waits
  Context* context;   // null: the caller's thread works alone
  Type type;
  Int count;  // elements of this rank's chunk
  Int size, place, operations;
  // size pointers to counters, then the operations

  Int** counters() { return (Int**)(this + 1); }
  Operation* operation() { return (Operation*)(counters() + size); }
};

// NumPy's maximum and minimum: the second of two equal numbers, and a NaN if either is one.
struct Sum { template <class T> static T of(T a, T b) { return a + b; } };
struct Max { template <class T> static T of(T a, T b) { return a > b || a != a ? a : b; } };
struct Min { template <class T> static T of(T a, T b) { return a < b || a != a ? a : b; } };

// A type of numbers as it is stored: of(a, b) by the operation Op.
template <class Stored> struct Plain {
  typedef Stored Element;
  template <class Op> static Element of(Element a, Element b) { return Op::of(a, b); }
};

// Signed integers wrap around, as NumPy's do.
template <class Signed, class Unsigned> struct Whole : Plain<Signed> {
  template <class Op> static Signed of(Signed a, Signed b) { return Op::of(a, b); }
};
template <> template <> int32_t Whole<int32_t, uint32_t>::of<Sum>(int32_t a, int32_t b) { return uint32_t(a) + uint32_t(b); }
template <> template <> int64_t Whole<int64_t, uint64_t>::of<Sum>(int64_t a, int64_t b) { return uint64_t(a) + uint64_t(b); }

struct Bfloat16 {
  typedef uint16_t Element;
  template <class Op> static Element of(Element a, Element b) {
    return to_bfloat16(bits_of(Op::of(from_bfloat16(a), from_bfloat16(b))));
  }
};

// As NumPy: a NaN keeps its sign and the first bits of its mantissa, and of two it is the second; of two equal numbers
// the first is the greater, and the lesser.
struct Half {
  typedef uint16_t Element;
  template <class Op> static Element of(Element a, Element b);
};
template <> uint16_t Half::of<Sum>(uint16_t a, uint16_t b) {
  float x = from_half(a), y = from_half(b);
  uint32_t sum = bits_of(y != y ? y : x + y);
  uint16_t nan = (sum >> 16 & 0x8000) | 0x7e00 | (sum >> 13 & 0x3ff);
  return (sum & MAGNITUDE) > INFINITE ? nan : to_half(sum);
}
template <> uint16_t Half::of<Max>(uint16_t a, uint16_t b) {
  float x = from_half(a), y = from_half(b);
  return x >= y || x != x ? a : b;
}
template <> uint16_t Half::of<Min>(uint16_t a, uint16_t b) {
  float x = from_half(a), y = from_half(b);
  return x <= y || x != x ? a : b;
}

// Two arrays of different ranks, or of different inputs: they never overlap. `both`: the source gets the result too.
template <class Numbers, class Op, class T>
INLINE void combine(T* __restrict target, T* __restrict source, Int count, bool both) {
  if (both) for (Int i = 0; i < count; i++) target[i] = source[i] = Numbers::template of<Op>(target[i], source[i]);
  else for (Int i = 0; i < count; i++) target[i] = Numbers::template of<Op>(target[i], source[i]);
}

// Whether the second operation copies the result of the first over its source: then both are one pass.
bool gives_back(const Operation& first, const Operation& second) {
  return second.action == COPY && second.target == first.source && second.source == first.target;
}

template <class Numbers> void run_part(const Operation* operations, Int several, Int first, Int end) {
  typedef typename Numbers::Element T;
  constexpr Int AT_ONCE = PIECE / Int(sizeof(T));
  for (Int start = first; start < end; start += AT_ONCE) {
    Int length = least(AT_ONCE, end - start);
    for (Int i = 0; i < several; i++) {
      const Operation& each = operations[i];
      T *target = (T*)each.target + start, *source = (T*)each.source + start;
      bool both = each.action != COPY && i + 1 < several && gives_back(each, operations[i + 1]);
      switch (each.action) {
        case COPY: memcpy(target, source, length * sizeof(T)); break;
        case SUM: combine<Numbers, Sum>(target, source, length, both); break;
        case MAX: combine<Numbers, Max>(target, source, length, both); break;
        case MIN: combine<Numbers, Min>(target, source, length, both); break;
      }
      i += both;
    }
  }
}

template <class Numbers> void run(Job& job) {
  if (!job.context) return run_part<Numbers>(job.operation(), job.operations, 0, job.count);
  job.context->parts(job.count, GRAIN, [&](Int first, Int end, Workspace&) {
    run_part<Numbers>(job.operation(), job.operations, first, end);
  });
}

void work(Job& job) {
  switch (job.type) {
    case FLOAT16: return run<Half>(job);
    case BFLOAT16: return run<Bfloat16>(job);
    case FLOAT32: return run<Plain<float>>(job);
    case FLOAT64: return run<Plain<double>>(job);
    case INT32: return run<Whole<int32_t, uint32_t>>(job);
    case INT64: return run<Whole<int64_t, uint64_t>>(job);
  }
}

bool proceed(Job& job, Patience patience) {
  Int* own = job.counters()[job.place];
  if (job.state == IDLE) {
    advance(own);
    job.state = COMING;
  }
  if (job.state == COMING && reached(job.counters(), job.size, *own, patience)) {
    work(job);
    advance(own);
    job.state = LEAVING;
  }
  if (job.state == LEAVING && reached(job.counters(), job.size, *own, patience)) job.state = IDLE;
  return job.state == IDLE;
}

}  // namespace

// Begin, or go on, without waiting and with: whether it is done.
extern "C" Int mapped_test(Job* job) { return proceed(*job, {0, 0}); }
extern "C" Int mapped_wait(Job* job) { return proceed(*job, job->patience); }
