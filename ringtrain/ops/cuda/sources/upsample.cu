// Larger images. The shares of pixels are made of whole numbers, as on the CPU. A thread makes one element.
#include "spots.cuh"

// A pixel of a larger axis: between pixels ``before`` and ``after``, with the share ``second`` of the latter.
struct Between {
    int before, after;
    REAL first, second;
    __device__ Between(int place, int count, int scale, int bilinear) {
        int twice = max(0, 2 * place + 1 - scale);
        before = bilinear ? twice / (2 * scale) : place / scale;
        after = min(before + 1, count - 1);
        second = bilinear ? (REAL)((double)(twice % (2 * scale)) / (double)(2 * scale)) : (REAL)0;
        first = (REAL)1 - second;
    }
    __device__ REAL share(int pixel) const {
        return (pixel == before ? first : (REAL)0) + (pixel == after ? second : (REAL)0);
    }
};

extern "C" __global__ void upsample(const ACT *x, ACT *y, int N, int H, int W, int C, int scale, int bilinear) {
    long long count = (long long)N * H * scale * W * scale * C;
    for (long long i = first_index(); i < count; i += index_stride()) {
        Spot at(i, H * scale, W * scale, C, 1);
        Between row(at.h, H, scale, bilinear), column(at.w, W, scale, bilinear);
        const ACT *image = x + at.n * H * W * C + at.c;
        REAL sum = 0;
        for (int a = 0; a < 2; a++) {
            REAL down = a ? row.second : row.first;
            const ACT *line = image + (long long)(a ? row.after : row.before) * W * C;
            if (down == (REAL)0) continue;
            REAL left = column.first * to_real(line[(long long)column.before * C]);
            REAL right = column.second == (REAL)0 ? (REAL)0 : column.second * to_real(line[(long long)column.after * C]);
            sum += down * (left + right);
        }
        y[i] = to_act(sum);
    }
}

extern "C" __global__ void upsample_back(const ACT *dy, ACT *dx, int N, int H, int W, int C, int scale, int bilinear) {
    int P = H * scale, Q = W * scale;
    long long count = (long long)N * H * W * C;
    for (long long i = first_index(); i < count; i += index_stride()) {
        Spot at(i, H, W, C, 1);
        REAL sum = 0;
        for (int p = max(0, (at.h - 1) * scale); p < min(P, (at.h + 2) * scale); p++) {
            REAL down = Between(p, H, scale, bilinear).share(at.h);
            if (down == (REAL)0) continue;
            for (int q = max(0, (at.w - 1) * scale); q < min(Q, (at.w + 2) * scale); q++) {
                REAL along = Between(q, W, scale, bilinear).share(at.w);
                if (along != (REAL)0) sum += down * along * to_real(dy[((at.n * P + p) * Q + q) * C + at.c]);
            }
        }
        dx[i] = to_act(sum);
    }
}
