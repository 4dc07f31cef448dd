// Collectives of arrays that lie anywhere, each as one call: the ranks of a node hand one another chunks through slots in
// memory that they share, and add or copy them straight into the caller's array. Compiled once a library, not once a type.
//
// Of an all-reduce a chunk is a part of the array. Where arrays have a row for each rank, it is a part of each row: a slot
// then has one piece of a rank's own row, or a piece for each rank.
//
// A slot is written by plain stores, or past the caches. Which is faster hangs on whether the cores of the ranks share a
// cache, which a virtual machine does not tell, and may change. So a rank times its own copies and additions, without its
// waits, and takes the faster way for arrays of a size; the other is tried again now and then. No bit hangs on that.
//
// A sliced all-reduce has three stages: a rank publishes; adds its slice of the chunk; and copies the others' slices.
//
// Where one rank may read another's memory by the kernel (process_vm_readv), long arrays that are not added are copied
// once, from where they lie: a rank publishes an address in place of a slot, and returns when all have read.
//
// What a rank does with each chunk, and for what it waits before, is the program of
// tests/collectives/stream_program.py, which is proved for any order of the actions that ranks may take.
// The order taken here: a rank publishes one chunk ahead of the one that it adds, and goes round in few slots, which stay
// in its cache. When the others do not come, as one that has lost its core, it publishes as far ahead as it has slots:
// so the other finds all of that when it gets a core again, and need not wait for this rank's next turn.
#include "elements.hpp"
#include "waits.hpp"
#include <errno.h>
#include <sys/uio.h>

constexpr Int LINE = 128;              // bytes of two cache lines, which some CPUs fetch together
constexpr Int MOST_SLOTS = 32;
constexpr Int MOST_STAGES = 3;
constexpr Int NEAR_SLOTS = 4;          // that stay in the cache
constexpr Int AHEAD = 2;               // chunks that are published before the first of them is done, while the others come
constexpr Int BLOCK_BYTES = 8 * 1024;  // of the sum of several arrays, which stays in the nearest cache
constexpr Int VECTOR = VECTOR_BYTES;
constexpr Int FIRST_TRIES = 3, TRIED_AGAIN = 64;  // calls of a way before one is taken; calls until the other is tried

namespace {

// Those from BROADCAST on copy bytes, and add nothing.
enum Collective : Int { ALL_REDUCE, SLICED_ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL };
enum Operation : Int { ADD, MEAN, MAX, MIN };

enum Way : Int { PLAIN, PAST_CACHES };

// The start of a rank's memory in the window. It counts the chunks that it has published, that it has taken through the
// stage in between, if there is one, and that it is done with; from `ends` on only this rank reads.
struct Header {
  alignas(LINE) Counter published;
  char slots[MOST_SLOTS];
  alignas(LINE) Counter between;
  alignas(LINE) Counter done;
  alignas(LINE) char words[LINE];  // of the call: they stay, since no rank gets past a call that differs
  Int ends[MOST_SLOTS];            // by slot: how many chunks all ranks must be done with before it is written again
  Int freed;                       // how many they were done with when this rank looked last
  Int called;                      // calls so far

  // A stage other than the last.
  Counter& stage(Int stage) { return stage ? between : published; }

  // Beside the first counter, of this call and the one before: a rank is at most one call ahead of another.
  Int& call(Int called) { return published.beside[called % 2]; }
  char& way(Int called) { return ((char*)(published.beside + 2))[called % 2]; }
  Int& source(Int called) { return published.beside[3 + called % 2]; }
  char& slot_of(Int chunk, Int slots) { return this->slots[chunk % slots]; }
};
static_assert(sizeof(Header) == (MOST_STAGES + 4) * LINE, "HEADER_BYTES of ops/cpu/streamed.py");

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
  Int moved;           // actions taken, and one for the start
  Int spins, yields;   // of each wait
  Type type;
  Operation operation;
  Int learns;          // whether it learns the faster way; if not, stores are plain
  Costs* costs;        // of arrays of about this size
  Int call;            // what all ranks must ask for: a hash of its words
  const char* words;   // LINE bytes
  Collective collective;
  Int root;
  Int chunk, slots, slot_bytes;
  Int size, place;
  Int first;           // chunks that went through the window before
  Int chunks;          // of this call
  Int stages, at[MOST_STAGES];     // how many of them are through each stage
  Way way;             // of this call
  Int writing, reading;  // ticks of this call
  const char* source;
  char* target;
  Int count;           // elements of a row, or of the array
  Int refused;         // what the kernel said when it did not read another's memory
  const Int* processes;  // numbers of the ranks' processes, which may read one another's memory; null: slots are used
  // size pointers to the ranks' memory

  Int done() { return at[stages - 1]; }
  Header& header(Int rank) { return *((Header**)(this + 1))[rank]; }
  Header& header() { return header(place); }
  Int called() { return header().called; }
  char& slot_of(Int rank, Int at) { return header(rank).slot_of(first + at, slots); }
  char* slot(Int rank, Int at) { return (char*)(&header(rank) + 1) + slot_of(rank, at) * slot_bytes; }
};

struct Span { Int start, stop; };

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

// Elements that are copied alone.
struct Bytes { typedef char Element; };

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

  // What a rank has published: all of it, or the piece for one rank.
  T* slot(Int rank, Int piece = 0) { return (T*)job.slot(rank, chunk) + piece * job.chunk; }
  // This rank's own part of the row for a rank, and the place of the row from a rank.
  const T* row_for(Int rank) { return source + rank * job.count; }
  T* row_from(Int rank) { return target + rank * job.count; }

  void put(Span span) {
    const T* from = source + span.start;
    write_slot(job, (char*)(slot(job.place) + span.start), (const char*)from, (span.stop - span.start) * sizeof(T));
  }

  void put_pieces() {
    for (Int rank = 0; rank < job.size; rank++)
      if (rank != job.place) write_slot(job, (char*)slot(job.place, rank), (const char*)row_for(rank), length * sizeof(T));
  }

  void publish() {
    bool root = job.place == job.root;
    switch (job.collective) {
      case ALL_REDUCE: case ALL_GATHER: return put({0, length});
      case SLICED_ALL_REDUCE: return put_others();
      case REDUCE: case GATHER: return root ? void() : put({0, length});
      case BROADCAST: return root ? put({0, length}) : void();
      case SCATTER: return root ? put_pieces() : void();
      case REDUCE_SCATTER: case ALL_TO_ALL: return put_pieces();
    }
  }

  void put_others() {
    Span span = slice(job.place);
    put({0, span.start});
    put({span.stop, length});
  }

  // What a rank adds: slices begin on cache lines.
  Span slice(Int rank) {
    Int longest = up(parts_of(length, job.size), LINE / Int(sizeof(T)));
    return {least(rank * longest, length), least((rank + 1) * longest, length)};
  }

  void sum() {
    if (job.collective == REDUCE && job.place != job.root) return;
    if (job.collective == REDUCE_SCATTER) return sum({0, length}, row_for(job.place), job.place);
    if (job.collective != SLICED_ALL_REDUCE) return sum({0, length}, source, 0);
    Span span = slice(job.place);
    sum(span, source, 0);
    const T* from = target + span.start;
    write_slot(job, (char*)(slot(job.place) + span.start), (const char*)from, (span.stop - span.start) * sizeof(T));
  }

  void sum(Span span, const T* own, Int piece) {
    const T* sources[MOST_RANKS];
    for (Int rank = 0; rank < job.size; rank++) sources[rank] = (rank == job.place ? own : slot(rank, piece)) + span.start;
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

  void copy() {
    bool root = job.place == job.root, pieces = job.collective == ALL_TO_ALL;
    Int began = ticks();
    if (job.collective == BROADCAST) {
      if (!root) fetch(target, job.root, 0);
    } else if (job.collective == SCATTER) {
      root ? take(target, row_for(job.place)) : fetch(target, job.root, job.place);
    } else if (job.collective != GATHER || root) {
      for (Int i = 0; i < job.size; i++) {  // each rank begins at another
        Int rank = (job.place + i) % job.size;
        if (rank == job.place) take(row_from(rank), pieces ? row_for(rank) : source);
        else fetch(row_from(rank), rank, pieces ? job.place : 0);
      }
    }
    job.reading += ticks() - began;
  }

  // Copy what another rank has published: a piece of its array, or all.
  void fetch(T* into, Int rank, Int piece) {
    if (!job.processes) return take(into, slot(rank, piece));
    const char* from = (const char*)job.header(rank).source(job.called()) + piece * job.count + chunk * job.chunk;
    iovec local = {into, size_t(length)}, remote = {(void*)from, size_t(length)};
    Int copied = process_vm_readv(job.processes[rank], &local, 1, &remote, 1, 0);
    if (copied != length) job.refused = copied < 0 ? errno : EFAULT;
  }

  void take(T* into, const T* from) {
    if (into != from) copy_plain((char*)into, (const char*)from, length * sizeof(T));
  }

  void copy_others() {
    Int began = ticks();
    for (Int i = 1; i < job.size; i++) {  // each rank begins at another
      Int rank = (job.place + i) % job.size;
      Span span = slice(rank);
      const T* from = slot(rank) + span.start;
      copy_plain((char*)(target + span.start), (const char*)from, (span.stop - span.start) * sizeof(T));
    }
    job.reading += ticks() - began;
  }
};

// The rank for which the next chunk waits at a stage; job.size without one.
Int late_rank(Job& job, Int stage) {
  for (Int rank = 0, count = job.first + job.at[stage] + 1; rank < job.size; rank++)
    if (counted(job.header(rank).stage(stage - 1)) < count) return rank;
  return job.size;
}

Int lowest_slot(Job& job) {
  Header& header = job.header();
  Int slot = 0;
  while (slot < job.slots && header.ends[slot] > header.freed) slot++;
  return slot;
}

// The lowest slot that all ranks are done with; job.slots without one.
Int free_slot(Job& job) {
  Int slot = lowest_slot(job);
  if (slot < NEAR_SLOTS) return slot;
  Int freed = INT64_MAX;
  for (Int rank = 0; rank < job.size; rank++) freed = least(freed, counted(job.header(rank).done));
  job.header().freed = freed;
  return lowest_slot(job);
}

void run(Job& job, Int stage) {
  Int at = job.at[stage];
  if (job.collective >= BROADCAST) {
    Chunk<Bytes> chunk(job, at);
    if (stage == 1) chunk.copy();
    else if (!stage && !job.processes) chunk.publish();
  } else {
    by_type(job.type, [&](auto numbers) {
      Chunk<decltype(numbers)> chunk(job, at);
      if (!stage) chunk.publish();
      else if (stage == 1) chunk.sum();
      else chunk.copy_others();
    });
  }
  Header& header = job.header();
  Counter& counter = stage == job.stages - 1 ? header.done : header.stage(stage);
  set_count(counter, job.first + ++job.at[stage]);
  job.moved++;
}

// Whether there was a chunk to publish, and a slot.
bool publish(Job& job) {
  Header& header = job.header();
  Int at = job.at[0];
  if (at == job.chunks) return false;
  if (!job.processes) {
    Int slot = free_slot(job);
    if (slot == job.slots) return false;
    job.slot_of(job.place, at) = slot;
    header.ends[slot] = job.first + at + 1;
  }
  run(job, 0);
  return true;
}

// The first rank whose call is another than this one's; job.size without one. All have begun theirs.
Int differing_rank(Job& job) {
  for (Int rank = 0; rank < job.size; rank++)
    if (job.header(rank).call(job.called()) != job.call) return rank;
  return job.size;
}

// Take an action that needs no wait: 1; 0 if there is none; -1 - rank if that rank makes another call.
Int act(Job& job) {
  Int ahead = job.processes ? job.chunks : AHEAD;  // one copy by the kernel needs no slot
  if (job.at[0] < job.done() + ahead && publish(job)) return 1;
  for (Int stage = job.stages - 1; stage > 0; stage--) {
    if (job.at[stage] == job.at[stage - 1] || late_rank(job, stage) < job.size) continue;
    if (stage == 1)
      if (Int differing = differing_rank(job); differing < job.size) return -1 - differing;
    run(job, stage);
    return 1;
  }
  return 0;
}

// Sleep until the rank moves for which this one waits first.
void sleep_on_late(Job& job) {
  Int stage = job.stages - 1;
  while (stage > 0 && job.at[stage] == job.at[stage - 1]) stage--;
  Int late = 0, count = job.first + job.at[stage] + (stage ? 1 : 1 - job.slots);
  auto counter = [&](Int rank) -> Counter& { return stage ? job.header(rank).stage(stage - 1) : job.header(rank).done; };
  while (late < job.size && counted(counter(late)) >= count) late++;
  if (late == job.size) return;
  Int seen = counted(counter(late));
  if (seen < count) sleep_on(counter(late), seen);
}

void begin(Job& job) {
  Header& header = job.header();
  job.moved = 1;
  job.chunks = parts_of(job.count, job.chunk);
  job.stages = job.collective == SLICED_ALL_REDUCE || job.processes ? 3 : 2;
  job.refused = 0;
  for (Int& at : job.at) at = 0;
  job.first = header.published.count;
  job.way = job.learns ? job.costs->choose() : PLAIN;
  job.writing = job.reading = 0;
  if (!job.count) return;
  header.called++;
  header.call(header.called) = job.call;
  header.way(header.called) = job.way;
  header.source(header.called) = Int(job.source);
  if (memcmp(header.words, job.words, LINE)) memcpy(header.words, job.words, LINE);
}

// Where the others wrote in different ways, what was read says nothing of either.
void end(Job& job) {
  job.moved = 0;
  if (!job.learns || !job.count || job.size == 1) return;
  job.costs->written[job.way].learn(double(job.writing) / job.count);
  Int ways[] = {0, 0};
  for (Int rank = 0; rank < job.size; rank++)
    if (rank != job.place) ways[Int(job.header(rank).way(job.called()))]++;
  if (!ways[PLAIN] || !ways[PAST_CACHES]) job.costs->read[ways[PAST_CACHES] > 0].learn(double(job.reading) / job.count);
}

Int proceed(Job& job, Patience patience) {
  if (!job.moved) begin(job);
  for (Patience left = patience; job.done() < job.chunks;) {
    Int acted = act(job);
    if (job.refused) return -1 - job.size;
    if (acted < 0) return acted;
    if (acted) {
      left = patience;
    } else if (stay_awake(left)) {
      if (!left.yields) patience.yields = 0;  // one was to a busy process: each further one would cost as much
    } else if (!publish(job)) {
      if (left.sleeps-- <= 0) return 0;
      sleep_on_late(job);
    }
  }
  end(job);
  return 1;
}

}  // namespace

// Begin, or go on: without waiting, awake, and asleep. 1 if it is done, 0 if it has to go on, -1 - rank if that rank makes
// another call, -1 - size if the kernel does not read another's memory.
extern "C" Int streamed_test(Job* job) { return proceed(*job, NONE); }
extern "C" Int streamed_wait(Job* job) { return proceed(*job, {job->spins, job->yields, 0}); }
extern "C" Int streamed_rest(Job* job) { return proceed(*job, REST); }
