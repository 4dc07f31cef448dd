// An input of a convolution that is in memory before its batch normalisation, and max(·, 0) after that: both are done by
// the threads that had it copied to shared memory, when it has arrived. What is beside the image stays 0.
#pragma once
#include "convolution.cuh"
#include "norm.cuh"

struct Normalised {
    const REAL *mean, *scale, *beta;  // [groups][channels], beta [channels]
    int channels;
    bool relu;
    Divider by_group;  // of pixels, to the group that they are in

    __device__ Normalised of_group(int group) const {
        long long at = (long long)group * channels;
        return {mean + at, scale + at, beta, channels, relu, by_group};
    }

    template <typename T, int EXTENT, bool DEEP, typename View> struct LoaderOf;
};

// What COUNT channels are normalised by, in one group.
template <int COUNT> struct NormalChunk {
    Vector<REAL, COUNT> mean, scale, beta;

    __device__ NormalChunk(const Normalised &of, int group, int channel) {
        long long at = (long long)group * of.channels + channel;
        mean = *(const Vector<REAL, COUNT> *)(of.mean + at);
        scale = *(const Vector<REAL, COUNT> *)(of.scale + at);
        beta = *(const Vector<REAL, COUNT> *)(of.beta + channel);
    }

    template <typename T> __device__ void apply(T *to, bool relu) const {
        typedef Vector<T, COUNT> Some;
        Some some = *(Some *)to;
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            REAL r = normal_of(to_real(some.at[e]), mean.at[e], scale.at[e], beta.at[e]);
            some.at[e] = to_act(relu ? relu_of(r) : r);
        }
        *(Some *)to = some;
    }
};

// For chunks of channels that lie together in memory.
template <typename T, int EXTENT, bool DEEP, typename View>
struct Normalised::LoaderOf : Loader<T, EXTENT, DEEP, View> {
    typedef Loader<T, EXTENT, DEEP, View> Base;
    typedef typename Base::P P;
    const Normalised input;

    __device__ LoaderOf(const View &view, int first, int end, bool wide, const Normalised &input)
        : Base(view, first, end, wide), input(input) {}

    __device__ void settle(T *panel, int depth, int depth_end) const {
        T *to = panel + this->line * P::STRIDE + this->chunk;
        if (DEEP) settle_deep(to, depth + this->chunk, depth_end);
        else settle_flat(to, depth + this->line, depth_end);
    }

    // Of one group.
    __device__ void settle_deep(T *to, int depth, int depth_end) const {
        if (depth >= depth_end) return;
        auto where = this->view.inner(depth);
        NormalChunk<P::WIDE> chunk(input, 0, this->view.channel(where));
#pragma unroll
        for (int i = 0; i < P::EACH; i++)
            if (this->row(i) < this->end && this->view.at(this->outer[DEEP ? i : 0], where))
                chunk.apply(to + i * P::STEP * P::STRIDE, input.relu);
    }

    // The rows of a thread are nearly always of one group: parameters are loaded again only where another one begins.
    __device__ void settle_flat(T *to, int depth, int depth_end) const {
        if (this->first + this->chunk >= this->end || depth >= depth_end) return;
        int group = input.by_group(depth), channel = this->view.channel(this->inner);
        NormalChunk<P::WIDE> chunk(input, group, channel);
#pragma unroll
        for (int i = 0; i < P::EACH; i++) {
            int at = depth + i * P::STEP;
            if (at >= depth_end || !this->view.at(this->view.outer(at), this->inner)) continue;
            int next = input.by_group(at);
            if (next != group) chunk = NormalChunk<P::WIDE>(input, group = next, channel);
            chunk.apply(to + i * P::STEP * P::STRIDE, input.relu);
        }
    }
};
