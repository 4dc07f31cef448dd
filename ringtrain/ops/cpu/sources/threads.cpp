// Compiled once a library, not once a type.
#include "threads.hpp"
#include "waits.hpp"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

constexpr Int LINE = 64;

// A build with -fsanitize=address finds what lies beyond a piece, or in one that was given back, and what is read before
// it is written: that is a NaN there.
#if defined(__has_feature)
#define SANITIZED __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#if SANITIZED
extern "C" void __asan_poison_memory_region(const volatile void*, size_t);
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
constexpr Int GAP = LINE;
static void close_all(char* at, Int count) { __asan_poison_memory_region(at, count); }
static void open_piece(char* at, Int count, Int whole) {
  __asan_unpoison_memory_region(at, whole);
  memset(at, 255, whole);
  __asan_poison_memory_region(at + count, whole - count);
}
#else
constexpr Int GAP = 0;
static void close_all(char*, Int) {}
static void open_piece(char*, Int, Int) {}
#endif

void Workspace::rewind() {
  if (chunk && chunk->before) {
    Int size = total;
    for (; chunk; ) { Chunk* before = chunk->before; free(chunk); chunk = before; }
    total = 0;
    bytes(size);
  }
  used = 0;
  if (chunk) close_all((char*)chunk + LINE, chunk->size);
}

void* Workspace::bytes(Int count) {
  Int asked = count;
  count = up(count, LINE) + GAP;
  if (!chunk || used + count > chunk->size) {
    Chunk* added = (Chunk*)aligned_alloc(LINE, count + LINE);
    if (!added) abort();
    *added = {chunk, count};
    chunk = added;
    total += count;
    used = 0;
  }
  char* at = (char*)chunk + LINE + used;
  used += count;
  open_piece(at, asked, count);
  return at;
}

// A helper waits for the number of the next job, spinning first: operations follow one another closely.
struct Pool {
  pid_t process;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_t threads[MOST_THREADS];
  Int started, job;
  Counter running;
  bool ending;
  Context* context;
  Part part;
  void* given;
  Int count, grain;
};

constexpr Int SPINS = 4000;
constexpr int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};

static void run_part(Context& context, Int index, Int count, Int grain, Part part, void* given) {
  Int grains = parts_of(count, grain), each = grains / context.threads, more = grains % context.threads;
  Int first = (index * each + least(index, more)) * grain, end = least(count, first + (each + (index < more)) * grain);
  context.own[index].rewind();
  if (first < end) part(given, first, end, context.own[index]);
}

struct Helper { Pool* pool; Int index; };

static void* help(void* given) {
  Helper helper = *(Helper*)given;
  free(given);
  Pool& pool = *helper.pool;
  for (Int done = 0;;) {
    for (Int i = 0; i < SPINS && __atomic_load_n(&pool.job, __ATOMIC_ACQUIRE) == done; i++) pause_cpu();
    pthread_mutex_lock(&pool.lock);
    while (pool.job == done && !pool.ending) pthread_cond_wait(&pool.wake, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    if (pool.ending) return 0;
    done++;
    run_part(*pool.context, helper.index, pool.count, pool.grain, pool.part, pool.given);
    if (!__atomic_sub_fetch(&pool.running.count, 1, __ATOMIC_ACQ_REL)) wake_sleepers(pool.running);
  }
}

void run_parts(Context& context, Int count, Int grain, Part part, void* given) {
  if (count <= 0) return;
  Pool* pool = (Pool*)context.pool;
  if (!pool || count <= grain || pool->process != getpid()) {  // a process that was forked has no helpers
    context.own[0].rewind();
    part(given, 0, count, context.own[0]);
    return;
  }
  pool->count = count; pool->grain = grain; pool->part = part; pool->given = given;
  __atomic_store_n(&pool->running.count, context.threads - 1, __ATOMIC_RELEASE);
  pthread_mutex_lock(&pool->lock);
  __atomic_add_fetch(&pool->job, 1, __ATOMIC_ACQ_REL);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->lock);
  run_part(context, 0, count, grain, part, given);
  Patience left = {SPINS, 0, 0};
  for (Int running; (running = counted(pool->running));)
    if (!stay_awake(left)) sleep_on(pool->running, running);
}

// Null without memory. With fewer threads if not all could be started.
extern "C" Context* open_context(Int threads) {
  Context* context = (Context*)calloc(1, sizeof(Context));
  if (!context) return 0;
  context->threads = most(1, least(threads, MOST_THREADS));
  if (context->threads == 1) return context;
  Pool* pool = (Pool*)calloc(1, sizeof(Pool));
  if (!pool) { free(context); return 0; }
  pool->process = getpid();
  pool->context = context;
  context->pool = pool;
  pthread_mutex_init(&pool->lock, 0);
  pthread_cond_init(&pool->wake, 0);
  sigset_t others, before;  // signals are the main thread's, but for those of a fault: a helper begins with them blocked
  sigfillset(&others);
  for (int fault : FAULTS) sigdelset(&others, fault);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  for (; pool->started < context->threads - 1; pool->started++) {
    Helper* helper = (Helper*)malloc(sizeof(Helper));
    if (!helper) break;
    *helper = {pool, pool->started + 1};
    if (pthread_create(&pool->threads[pool->started], 0, help, helper)) { free(helper); break; }
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
  context->threads = pool->started + 1;
  return context;
}

static void drop(Workspace& space) {
  for (; space.chunk; ) { Workspace::Chunk* before = space.chunk->before; free(space.chunk); space.chunk = before; }
}

extern "C" void close_context(Context* context) {
  if (Pool* pool = (Pool*)context->pool) {
    pthread_mutex_lock(&pool->lock);
    pool->ending = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (Int i = 0; i < pool->started; i++) pthread_join(pool->threads[i], 0);
    free(pool);
  }
  drop(context->shared);
  for (Workspace& space : context->own) drop(space);
  free(context);
}

extern "C" Int context_threads(const Context* context) { return context->threads; }

// Bytes of all workspaces.
extern "C" Int context_bytes(const Context* context) {
  Int bytes = context->shared.total;
  for (const Workspace& space : context->own) bytes += space.total;
  return bytes;
}
