// The all-reduce of arrays that lie anywhere, as one call: the ranks of a node hand one another chunks through slots in
// memory that they share, and add them straight into the caller's array. Compiled once a library, not once a type.
//
// A slot is written by plain stores, or past the caches. Which is faster hangs on whether the cores of the ranks share a
// cache, which a virtual machine does not tell, and may change. So a rank times its own copies and additions, without its
// waits, and takes the faster way for arrays of a size; the other is tried again now and then. No bit hangs on that.
//
// What a rank does with each chunk, in which order, and how many slots it has, is the program of
// collectives/execution/stream_program.py, and is proved there to need no more waits than these.
#include "elements.hpp"
#include "waits.hpp"

constexpr Int LINE = 128;              // bytes of two cache lines, which some CPUs fetch together
constexpr Int MOST_SLOTS = 4;
constexpr Int HEADER = 3 * LINE;       // of a rank's memory, before its slots
constexpr Int BLOCK_BYTES = 8 * 1024;  // of the sum of several arrays, which stays in the nearest cache
constexpr Int VECTOR = VECTOR_BYTES;
constexpr Int FIRST_TRIES = 3, TRIED_AGAIN = 64;  // calls of a way before one is taken; calls until the other is tried

namespace {

enum Action : Int { PUBLISH, PUBLISH_OTHERS, SUM, SUM_OWN, COPY_OTHERS };
enum Operation : Int { ADD, MEAN, MAX, MIN };

struct Instruction { Action action; Int ahead; };

enum Way : Int { PLAIN, PAST_CACHES, FASTER };

// The start of a rank's memory in the window. The call of each slot's chunk, and how it was written, stand beside the
// counter. The words of a call stay there as long as another rank may read them: none gets past a call that differs.
struct Header {
  Int published, calls[MOST_SLOTS];
  char ways[LINE - sizeof(Int) * (1 + MOST_SLOTS)];
  Int summed;
  char apart[LINE - sizeof(Int)], words[LINE];
};
static_assert(sizeof(Header) == HEADER, "the slots follow");

// What a byte has cost, by its way: to write it, and to read what others wrote so. Of arrays of about one size.
struct Cost {
  double mean;
  Int samples;

  // A call that lost its core in between counts little.
  void learn(double sample) {
    if (samples >= FIRST_TRIES && sample > 2 * mean) sample = 2 * mean;
    mean = samples++ ? mean + (sample - mean) / 4 : sample;
  }
};

struct Costs {
  Cost written[2], read[2];
  Int calls;

  Way choose() {
    calls++;
    Int known = least(least(written[0].samples, written[1].samples), least(read[0].samples, read[1].samples));
    if (known < FIRST_TRIES) return Way(calls % 2);
    bool past = written[PAST_CACHES].mean + read[PAST_CACHES].mean < written[PLAIN].mean + read[PLAIN].mean;
    return Way(calls % TRIED_AGAIN ? past : !past);
  }
};

// In the caller's memory: a call that has waited long enough ends there, and the next goes on.
struct Job {
  Int at;              // instructions that are done
  Patience patience;   // of a call that waits
  Type type;
  Operation operation;
  Way asked;
  Costs* costs;        // of arrays of about this size
  Int call;            // what all ranks must ask for: a hash of its words
  const char* words;   // LINE bytes
  Int chunk, slots, slot_bytes;
  Int size, place, instructions;
  Int first;           // chunks that went through the window before
  Way way;             // of this call
  Int writing, reading;  // ticks of this call
  const char* source;
  char* target;
  Int count;
  // size pointers to the ranks' memory, then the program

  char** memory() { return (char**)(this + 1); }
  Instruction* program() { return (Instruction*)(memory() + size); }
  Header& header(Int rank) { return *(Header*)memory()[rank]; }
  char* slot(Int rank, Int chunk) { return memory()[rank] + HEADER + (first + chunk) % slots * slot_bytes; }
};

struct Span { Int start, stop; };

// Slices begin on cache lines.
template <class T> Span slice(Int length, Int of, Int parts) {
  Int longest = up(parts_of(length, parts), LINE / Int(sizeof(T)));
  return {least(of * longest, length), least((of + 1) * longest, length)};
}

INLINE Int ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  Int now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return 0;
#endif
}

INLINE void fence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();  // the stores past the caches are not ordered with others
#endif
}

// The target begins on a cache line.
void copy_past_caches(char* target, const char* source, Int bytes) {
#if defined(__clang__)
  typedef char Aligned __attribute__((vector_size(VECTOR)));
  typedef char Loose __attribute__((vector_size(VECTOR), aligned(1), may_alias));
  Int whole = bytes / VECTOR * VECTOR;
  for (Int i = 0; i < whole; i += VECTOR) __builtin_nontemporal_store(Aligned(*(const Loose*)(source + i)), (Aligned*)(target + i));
#elif defined(__x86_64__)
  typedef long long Aligned __attribute__((vector_size(16)));
  typedef long long Loose __attribute__((vector_size(16), aligned(1), may_alias));
  Int whole = bytes / 16 * 16;
  for (Int i = 0; i < whole; i += 16) __builtin_ia32_movntdq((Aligned*)(target + i), *(const Loose*)(source + i));
#else
  Int whole = 0;
#endif
  memcpy(target + whole, source + whole, bytes - whole);
}

// By vectors: the C library's copy takes other ways for long arrays, some of which are slow here.
void copy_plain(char* target, const char* source, Int bytes) {
  typedef char Loose __attribute__((vector_size(VECTOR), aligned(1), may_alias));
  Int whole = bytes / (4 * VECTOR) * (4 * VECTOR);
  for (Int i = 0; i < whole; i += 4 * VECTOR)
    UNROLL for (Int j = 0; j < 4 * VECTOR; j += VECTOR) *(Loose*)(target + i + j) = *(const Loose*)(source + i + j);
  memcpy(target + whole, source + whole, bytes - whole);
}

void write_slot(Job& job, char* target, const char* source, Int bytes) {
  Int began = ticks();
  if (job.way == PAST_CACHES) {
    copy_past_caches(target, source, bytes);
    fence();
  } else {
    copy_plain(target, source, bytes);
  }
  job.writing += ticks() - began;
}

template <class Numbers, class Op, class T> void sum_of(const T* const* sources, Int size, T* target, Int count) {
  if (size == 1 && target != sources[0]) memcpy(target, sources[0], count * sizeof(T));
  if (size == 2) return combine<Numbers, Op>(target, sources[0], sources[1], count);
  constexpr Int AT_ONCE = BLOCK_BYTES / Int(sizeof(T));
  T block[AT_ONCE];
  for (Int start = 0; start < count; start += AT_ONCE) {
    Int length = least(AT_ONCE, count - start);
    const T* before = sources[0] + start;
    for (Int rank = 1; rank < size; rank++) {
      T* into = rank == size - 1 ? target + start : block;
      combine<Numbers, Op>(into, before, sources[rank] + start, length);
      before = block;
    }
  }
}

// Each contribution is divided before it is added, in float32: a mean is finite where the contributions are.
template <class Numbers, class T> void mean_of(const T* const* sources, Int size, T* target, Int count) {
  constexpr Int AT_ONCE = BLOCK_BYTES / Int(sizeof(float));
  float block[AT_ONCE], by = size;
  for (Int start = 0; start < count; start += AT_ONCE) {
    Int length = least(AT_ONCE, count - start);
    for (Int i = 0; i < length; i++) block[i] = Numbers::wide(sources[0][start + i]) / by;
    for (Int rank = 1; rank < size; rank++)
      for (Int i = 0; i < length; i++) block[i] += Numbers::wide(sources[rank][start + i]) / by;
    for (Int i = 0; i < length; i++) target[start + i] = Numbers::rounded(block[i]);
  }
}

constexpr Int MOST_RANKS = 1024;

// The work of a program on chunks of one type.
template <class Numbers> struct Chunk {
  typedef typename Numbers::Element T;
  Job& job;
  Int chunk, length;
  const T* source;
  T* target;

  Chunk(Job& job, Int chunk)
      : job(job), chunk(chunk), length(least(job.chunk, job.count - chunk * job.chunk)),
        source((const T*)job.source + chunk * job.chunk), target((T*)job.target + chunk * job.chunk) {}

  T* slot(Int rank) { return (T*)job.slot(rank, chunk); }

  void put(Span span) {
    const T* from = source + span.start;
    write_slot(job, (char*)(slot(job.place) + span.start), (const char*)from, (span.stop - span.start) * sizeof(T));
  }

  void publish(bool others) {
    if (others) {
      Span own = slice<T>(length, job.place, job.size);
      put({0, own.start});
      put({own.stop, length});
    } else {
      put({0, length});
    }
    Header& header = job.header(job.place);
    Int at = (job.first + chunk) % job.slots;
    header.calls[at] = job.call;
    header.ways[at] = job.way;
    __atomic_store_n(&header.published, job.first + chunk + 1, __ATOMIC_RELEASE);
  }

  void sum(Span span) {
    const T* sources[MOST_RANKS];
    for (Int rank = 0; rank < job.size; rank++) sources[rank] = (rank == job.place ? source : slot(rank)) + span.start;
    Int count = span.stop - span.start, began = ticks();
    T* into = target + span.start;
    switch (job.operation) {
      case ADD: sum_of<Numbers, Sum>(sources, job.size, into, count); break;
      case MEAN: mean(sources, into, count); break;
      case MAX: sum_of<Numbers, Max>(sources, job.size, into, count); break;
      case MIN: sum_of<Numbers, Min>(sources, job.size, into, count); break;
    }
    job.reading += ticks() - began;
  }

  void mean(const T* const* sources, T* into, Int count) {
    if constexpr (sizeof(T) == 2) return mean_of<Numbers>(sources, job.size, into, count);
    sum_of<Numbers, Sum>(sources, job.size, into, count);
    divide(into, T(job.size), count);
  }

  void sum_own() {
    Span own = slice<T>(length, job.place, job.size);
    sum(own);
    const T* from = target + own.start;
    write_slot(job, (char*)(slot(job.place) + own.start), (const char*)from, (own.stop - own.start) * sizeof(T));
    __atomic_store_n(&job.header(job.place).summed, job.first + chunk + 1, __ATOMIC_RELEASE);
  }

  void copy_others() {
    Int began = ticks();
    for (Int i = 1; i < job.size; i++) {  // each rank begins at another
      Int rank = (job.place + i) % job.size;
      Span span = slice<T>(length, rank, job.size);
      const T* from = slot(rank) + span.start;
      copy_plain((char*)(target + span.start), (const char*)from, (span.stop - span.start) * sizeof(T));
    }
    job.reading += ticks() - began;
  }
};

template <class Numbers> void run(Job& job, Action action, Int chunk) {
  Chunk<Numbers> work(job, chunk);
  switch (action) {
    case PUBLISH: return work.publish(false);
    case PUBLISH_OTHERS: return work.publish(true);
    case SUM: return work.sum({0, work.length});
    case SUM_OWN: return work.sum_own();
    case COPY_OTHERS: return work.copy_others();
  }
}

bool all_reached(Job& job, Int Header::*counter, Int count, Patience& patience) {
  for (Int rank = 0; rank < job.size; rank++)
    if (!reached(&(job.header(rank).*counter), count, patience)) return false;
  return true;
}

// Whether this rank may go on: 1; 0 after as much waiting as there may be; -1 - rank if that rank makes another call.
Int may_go_on(Job& job, Action action, Int chunk, Patience& patience) {
  Int count = job.first + chunk + 1;
  if (action == COPY_OTHERS) return all_reached(job, &Header::summed, count, patience);
  if (action != SUM && action != SUM_OWN) return 1;
  if (!all_reached(job, &Header::published, count, patience)) return 0;
  for (Int rank = 0; rank < job.size; rank++)
    if (job.header(rank).calls[(job.first + chunk) % job.slots] != job.call) return -1 - rank;
  return 1;
}

void begin(Job& job) {
  job.first = job.header(job.place).published;
  job.way = job.asked == FASTER ? job.costs->choose() : job.asked;
  job.writing = job.reading = 0;
  char* words = job.header(job.place).words;
  if (memcmp(words, job.words, LINE)) memcpy(words, job.words, LINE);
}

// Where the others wrote in different ways, what was read says nothing of either.
void end(Job& job) {
  job.at = 0;
  if (job.asked != FASTER || !job.count || job.size == 1) return;
  job.costs->written[job.way].learn(double(job.writing) / job.count);
  Int at = (job.first + parts_of(job.count, job.chunk) - 1) % job.slots, way = job.header(!job.place).ways[at];
  for (Int rank = 0; rank < job.size; rank++)
    if (rank != job.place && job.header(rank).ways[at] != way) return;
  job.costs->read[way].learn(double(job.reading) / job.count);
}

Int proceed(Job& job, Patience patience) {
  if (!job.at) begin(job);
  Int chunks = parts_of(job.count, job.chunk);
  for (; job.at < (chunks + 1) * job.instructions; job.at++) {
    Instruction next = job.program()[job.at % job.instructions];
    Int chunk = job.at / job.instructions - 1 + next.ahead;
    if (chunk < 0 || chunk >= chunks) continue;
    Int going = may_go_on(job, next.action, chunk, patience);
    if (going != 1) return going;
    by_type(job.type, [&](auto numbers) { run<decltype(numbers)>(job, next.action, chunk); });
  }
  end(job);
  return 1;
}

}  // namespace

// Begin, or go on, without waiting and with: 1 if it is done, 0 if it has to go on, -1 - rank if that rank makes another
// call.
extern "C" Int streamed_test(Job* job) { return proceed(*job, {0, 0}); }
extern "C" Int streamed_wait(Job* job) { return proceed(*job, job->patience); }
