// The update of weights by their gradients, over a table of ranges; see ringtrain/ops/update.py for numbers and rules.
//
//     chunks [count][3]    first element, elements, range     a block takes one after another
//     ranges [..][5]       lr, decay, rate of running statistics (0: trained), norm (-1: none), whether frozen
//
// Arrays are over the arena, those of state from element ``first`` on. Compiled with KIND, the rule.
#include "map.cuh"

#define REALS Wide<REAL>::COUNT
#define CHUNK_FIELDS 3
#define RANGE_FIELDS 5
#define UPDATE_THREADS 256

enum { RATE, UPDATES, MULTIPLIER, APPLIED, DIVERGED };
enum { FACTOR, GOOD, SKIPPED };
enum { SGD, NESTEROV, ADAMW, ADAM, RMSPROP, LARS, LAMB, STATISTICS };

struct Range {
    REAL lr, decay, rate;
    int norm;
    bool frozen;
    __device__ explicit Range(const double *fields)
        : lr((REAL)fields[0]), decay((REAL)fields[1]), rate((REAL)fields[2]), norm((int)fields[3]), frozen(fields[4] != 0) {}
    __device__ bool trained() const { return !frozen && rate == (REAL)0; }
};

// What an optimizer is made of: the same in every launch of a run.
struct Rule {
    double momentum, beta2, eps, trust;
};

// 1/(1 - beta^updates), in every thread: by one, as a device may have few units for double.
__device__ inline double correction_of(double beta, double updates) {
    __shared__ double found;
    __syncthreads();
    if (threadIdx.x == 0) {
        double power = 1, square = beta;
        for (long long n = (long long)updates; n; n /= 2, square *= square)
            if (n % 2) power *= square;
        found = 1 / (1 - power);
    }
    __syncthreads();
    return found;
}

// The moving moments of the gradient g.
__device__ inline void moments(REAL &m, REAL &v, REAL g, REAL b1, REAL b2) {
    m = b1 * m + ((REAL)1 - b1) * g;
    v = b2 * v + ((REAL)1 - b2) * g * g;
}

// Weights at 0 would stay there, and without a gradient the ratio is undefined: it is 1 then.
template <int KIND_> __device__ double trust_ratio(const Rule &rule, const double *fields, int norm, const double *squares) {
    if (norm < 0) return 1;
    double w = sqrt(squares[2 * norm]), g = sqrt(squares[2 * norm + 1]), ratio = 1;
    if (w > 0 && g > 0) ratio = KIND_ == LARS ? rule.trust * w / (g + fields[1] * w) : w / g;
    return ratio;
}

// f(w, g, state ...) of a chunk, and then the average: that of the first update is the weights themselves.
template <typename F, typename... S>
__device__ void update_chunk(int n, F f, REAL *w, const REAL *g, REAL *average, REAL share, bool begins, S *...state) {
    if (!average) return update_block<REALS>(n, f, w, g, state...);
    update_block<REALS>(n, [=](REAL &w, REAL g, REAL &mean, auto &...s) {
        f(w, g, s...);
        mean = begins ? w : mean + share * (w - mean);
    }, w, g, average, state...);
}

template <int KIND_>
__device__ void update_all(
    REAL *weights, const REAL *grads, REAL *first_state, REAL *second_state, REAL *average, const double *squares,
    const long long *chunks, const double *ranges, const double *numbers, long long first, int count, const Rule &rule,
    double ema
) {
    if (numbers[APPLIED] == 0) return;
    double updates = numbers[UPDATES];
    REAL by = (REAL)numbers[MULTIPLIER], b1 = (REAL)rule.momentum, b2 = (REAL)rule.beta2, eps = (REAL)rule.eps;
    REAL share = (REAL)(1 - ema), c2 = 0;
    double c1 = 0;
    bool begins = updates == 1;
    if (KIND_ == ADAMW || KIND_ == ADAM) {
        c1 = correction_of(rule.momentum, updates);
        c2 = (REAL)correction_of(rule.beta2, updates);
    }
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const long long *chunk = chunks + CHUNK_FIELDS * i;
        const double *fields = ranges + RANGE_FIELDS * chunk[2];
        Range range(fields);
        long long at = chunk[0], own = at - first;
        int n = (int)chunk[1];
        REAL *w = weights + at, *m = first_state + own, *v = second_state + own, *mean = average ? average + own : average;
        const REAL *g = grads + at;
        double exact_lr = numbers[RATE] * fields[0];
        REAL lr = (REAL)exact_lr, decay = range.decay;
        auto all = [&](auto f, auto *...state) { update_chunk(n, f, w, g, mean, share, begins, state...); };
        if (range.rate != (REAL)0) {
            REAL rate = range.rate;
            all([=](REAL &w, REAL g) { w += rate * (g - w); });
        } else if (range.frozen || KIND_ == STATISTICS) {
            if (mean) all([](REAL &, REAL) {});
        } else if constexpr (KIND_ == SGD || KIND_ == NESTEROV) {
            all([=](REAL &w, REAL g, REAL &v) {
                REAL gradient = by * g + decay * w;
                v = b1 * v + gradient;
                w -= lr * (KIND_ == NESTEROV ? gradient + b1 * v : v);
            }, m);
        } else if constexpr (KIND_ == ADAMW || KIND_ == ADAM) {
            REAL rate = (REAL)(exact_lr * c1), l2 = KIND_ == ADAM ? decay : (REAL)0;
            REAL shrink = (REAL)1 - (KIND_ == ADAMW ? (REAL)(exact_lr * fields[1]) : (REAL)0);
            all([=](REAL &w, REAL g, REAL &m, REAL &v) {
                moments(m, v, by * g + l2 * w, b1, b2);
                w = shrink * w - rate * m / (sqrt(v * c2) + eps);
            }, m, v);
        } else if constexpr (KIND_ == RMSPROP) {
            all([=](REAL &w, REAL g, REAL &s, REAL &v) {
                REAL gradient = by * g + decay * w;
                s = b2 * s + ((REAL)1 - b2) * gradient * gradient;
                v = b1 * v + gradient / (sqrt(s) + eps);
                w -= lr * v;
            }, m, v);
        } else if constexpr (KIND_ == LARS) {
            double ratio = trust_ratio<KIND_>(rule, fields, range.norm, squares);
            REAL inside = (REAL)(exact_lr * ratio), inner_decay = inside * decay;
            all([=](REAL &w, REAL g, REAL &v) {
                v = b1 * v + inside * g + inner_decay * w;
                w -= v;
            }, m);
        } else if constexpr (KIND_ == LAMB) {
            REAL step = (REAL)(exact_lr * trust_ratio<KIND_>(rule, fields, range.norm, squares));
            all([=](REAL &w, REAL g) { w -= step * g; });
        }
    }
}

extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, 2) update(
    REAL *w, const REAL *g, REAL *first_state, REAL *second_state, REAL *average, const double *squares,
    const long long *chunks, const double *ranges, const double *numbers, long long first, int count, double momentum,
    double beta2, double eps, double trust, double ema) {
    Rule rule{momentum, beta2, eps, trust};
    update_all<KIND>(w, g, first_state, second_state, average, squares, chunks, ranges, numbers, first, count, rule, ema);
}

// ── norms of parameters ──────────────────────────────────────────────────────────────────────────────────────────
// Turn the gradients into directions, in place, and parts [count][2] = squares of weights and directions of each chunk
// whose range has a norm.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) directions(
    const REAL *weights, REAL *grads, REAL *first_state, REAL *second_state, const long long *chunks, const double *ranges,
    const double *numbers, double *parts, long long first, int count, double momentum, double beta2, double eps) {
    if (numbers[APPLIED] == 0) return;
    double updates = numbers[UPDATES];
    REAL by = (REAL)numbers[MULTIPLIER], b1 = (REAL)momentum, b2 = (REAL)beta2, e = (REAL)eps;
    REAL c1 = (REAL)correction_of(momentum, updates), c2 = (REAL)correction_of(beta2, updates);
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const long long *chunk = chunks + CHUNK_FIELDS * i;
        Range range(ranges + RANGE_FIELDS * chunk[2]);
        long long at = chunk[0], own = at - first;
        REAL decay = range.decay;
        double w_sum = 0, g_sum = 0;
        auto add = [&](REAL w, REAL g) {
            w_sum += (double)w * w;
            g_sum += (double)g * g;
        };
        if (!range.trained()) continue;
        if constexpr (KIND == LAMB) {
            update_block<REALS>((int)chunk[1], [&](REAL w, REAL &g, REAL &m, REAL &v) {
                moments(m, v, by * g, b1, b2);
                g = c1 * m / (sqrt(v * c2) + e) + decay * w;
                add(w, g);
            }, weights + at, grads + at, first_state + own, second_state + own);
        } else {
            update_block<REALS>((int)chunk[1], [&](REAL w, REAL &g) {
                g = by * g;
                add(w, g);
            }, weights + at, grads + at);
        }
        if (range.norm < 0) continue;
        w_sum = block_sum(w_sum);
        g_sum = block_sum(g_sum);
        if (threadIdx.x == 0) parts[2 * i] = w_sum, parts[2 * i + 1] = g_sum;
    }
}

// squares[norm] += parts of the norm's chunks, ``spans`` [norms][3]: its first chunk, how many, the norm. A block each.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) add_norms(
    const double *parts, const long long *spans, const double *numbers, double *squares) {
    if (numbers[APPLIED] == 0) return;
    const long long *span = spans + 3 * blockIdx.x;
    double w = 0, g = 0;
    for (long long i = threadIdx.x; i < span[1]; i += blockDim.x) {
        w += parts[2 * (span[0] + i)];
        g += parts[2 * (span[0] + i) + 1];
    }
    w = block_sum(w);
    g = block_sum(g);
    if (threadIdx.x == 0) squares[2 * span[2]] += w, squares[2 * span[2] + 1] += g;
}
