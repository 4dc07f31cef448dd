// The memory and the threads of one caller. A part of an operation has one thread and a workspace of its own.
#pragma once
#include "vector.hpp"

constexpr Int MOST_THREADS = 64;

// Memory that an operation takes piece by piece, and gives back as a whole. It only grows: after the first call for a
// shape nothing is allocated.
struct Workspace {
  struct Chunk { Chunk* before; Int size; };
  Chunk* chunk;
  Int used;  // bytes of the newest chunk
  Int total; // bytes of all

  void rewind();
  void* bytes(Int count);
  // Uninitialised, on a cache line.
  template <class T> T* take(Int count) { return (T*)bytes(count * Int(sizeof(T))); }
};

struct Context;
typedef void (*Part)(void* given, Int first, Int end, Workspace& space);

// Cut 0 .. count into as many ranges of whole grains as there are threads, and run each range in its thread. Which
// thread computes what must not change a result.
void run_parts(Context& context, Int count, Int grain, Part part, void* given);

struct Context {
  Int threads;
  Workspace shared;  // of all parts of an operation: what is taken before they run
  Workspace own[MOST_THREADS];
  void* pool;

  // run(first, end, workspace)
  template <class Run> void parts(Int count, Int grain, Run run) {
    run_parts(*this, count, grain, [](void* given, Int first, Int end, Workspace& space) { (*(Run*)given)(first, end, space); }, &run);
  }
};
