// The all-reduce in memory that the ranks of a node share, as one call: come, wait for all, run the operations of this
// rank's chunk, leave, wait for all. Compiled once a library, not once a type.
//
// Its operations are the node program's (collectives/execution/node_program.py), in their order. They run on a piece of
// the chunk after another: what an addition has written is in the cache when it is read again, and a line that it has
// read of another rank has not been taken back by then.
#include "elements.hpp"
#include "threads.hpp"
#include "waits.hpp"

constexpr Int PIECE = 4 * 1024;  // bytes of each array

namespace {

enum State : Int { IDLE, COMING, LEAVING };
enum Action : Int { COPY, SUM, MAX, MIN };

struct Operation { Action action; char *target, *source; };

// In the caller's memory: a call that has waited long enough ends there, and the next goes on.
struct Job {
  State state;
  Int spins, yields;  // of a call that waits
  Context* context;   // null: the caller's thread works alone
  Type type;
  Int count;  // elements of this rank's chunk
  Int size, place, operations;
  // size pointers to counters, then the operations

  Counter** counters() { return (Counter**)(this + 1); }
  Operation* operation() { return (Operation*)(counters() + size); }
};

// Whether the second operation copies the result of the first over its source: then both are one pass.
bool gives_back(const Operation& first, const Operation& second) {
  return second.action == COPY && second.target == first.source && second.source == first.target;
}

// target = target op source, and source too if it is given back.
template <class Numbers, class Op, class T> INLINE void combine_into(T* target, T* source, Int count, bool given_back) {
  if (!given_back) return combine<Numbers, Op>(target, target, source, count);
  INDEPENDENT for (Int i = 0; i < count; i++) target[i] = source[i] = Numbers::template of<Op>(target[i], source[i]);
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
        case SUM: combine_into<Numbers, Sum>(target, source, length, both); break;
        case MAX: combine_into<Numbers, Max>(target, source, length, both); break;
        case MIN: combine_into<Numbers, Min>(target, source, length, both); break;
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

bool all_reached(Job& job, Int count, Patience& patience) {
  for (Int i = 0; i < job.size; i++)
    if (!reached(*job.counters()[i], count, patience)) return false;
  return true;
}

bool proceed(Job& job, Patience patience) {
  Counter& own = *job.counters()[job.place];
  if (job.state == IDLE) {
    advance(own);
    job.state = COMING;
  }
  if (job.state == COMING && all_reached(job, own.count, patience)) {
    by_type(job.type, [&](auto numbers) { run<decltype(numbers)>(job); });
    advance(own);
    job.state = LEAVING;
  }
  if (job.state == LEAVING && all_reached(job, own.count, patience)) job.state = IDLE;
  return job.state == IDLE;
}

}  // namespace

// Begin, or go on: without waiting, awake, and asleep. Whether it is done.
extern "C" Int mapped_test(Job* job) { return proceed(*job, NONE); }
extern "C" Int mapped_wait(Job* job) { return proceed(*job, {job->spins, job->yields, 0}); }
extern "C" Int mapped_rest(Job* job) { return proceed(*job, REST); }
