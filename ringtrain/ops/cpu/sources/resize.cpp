// A part of an image of bytes, resized: a new pixel is the mean of all pixels that it covers, by a triangle (bilinear
// with antialias). Shares are whole numbers, and sums are rounded to bytes after each axis, the columns' first: all
// families give the same bits. Source: Pillow's resize by BILINEAR, which these pixels equal up to 1 in 255.
#include "threads.hpp"
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

namespace {
constexpr Int PRECISION = 14;  // bits of a share, so that it fits into 16 with its sign
constexpr Int TOGETHER = 4;    // rows
constexpr Int WIDE = 16;       // bytes of a vector
constexpr Int LAST = 3;        // rows of an image, behind which vectors may end: they are copied

// What pixels of an axis a new one covers: `pairs` pairs of them from `first` on, the last with a share of 0 if their
// number is odd.
struct Covered {
  Int most, *first, *pairs;
  int16_t* shares;  // of each new pixel 2 · most

  // Of `size` new pixels that lie evenly from `start` to start + extent, of `length` old ones.
  Covered(Workspace& space, Int length, double start, double extent, Int size) {
    double scale = extent / double(size), reach = scale < 1 ? 1 : scale, by = 1 / reach;
    most = Int(reach) + 2;
    first = space.take<Int>(size), pairs = space.take<Int>(size), shares = space.take<int16_t>(2 * most * size);
    double* weights = space.take<double>(2 * most);
    for (Int i = 0; i < size; i++) {
      double centre = start + (double(i) + 0.5) * scale, total = 0, sum = 0;
      first[i] = ::most(0, Int(centre - reach + 0.5));
      Int count = least(length, Int(centre + reach + 0.5)) - first[i], given = 0;
      for (Int x = 0; x < count; x++) {
        double apart = (double(x + first[i]) - centre + 0.5) * by, near = apart < 0 ? -apart : apart;
        total += weights[x] = near < 1 ? 1 - near : 0;
      }
      int16_t* share = shares + 2 * most * i;
      pairs[i] = parts_of(count, 2);
      share[2 * pairs[i] - 1] = 0;
      for (Int x = 0; x < count; x++) {  // rounded so that all shares are one whole
        sum += weights[x];
        Int whole = Int(sum / total * (1 << PRECISION) + 0.5);
        share[x] = int16_t(whole - given), given = whole;
      }
    }
  }
};

#if defined(__SSE4_1__)
typedef __m128i Bytes;
INLINE Bytes bytes_at(const uint8_t* p) { return _mm_loadu_si128((const Bytes*)p); }
INLINE Bytes low_pairs(Bytes a, Bytes b) { return _mm_unpacklo_epi8(a, b); }  // a0 b0 a1 b1 …
INLINE Bytes high_pairs(Bytes a, Bytes b) { return _mm_unpackhi_epi8(a, b); }
INLINE uint32_t word(Bytes v, Int i) { return i == 0 ? _mm_cvtsi128_si32(v) : i == 1 ? _mm_extract_epi32(v, 1) : i == 2 ? _mm_extract_epi32(v, 2) : _mm_extract_epi32(v, 3); }

// Two neighbouring pixels at each of p and q, channel by channel.
template <Int STEP> INLINE Bytes pixel_pairs(const uint8_t* p, const uint8_t* q) {
  Bytes both = _mm_unpacklo_epi64(_mm_loadl_epi64((const Bytes*)p), _mm_loadl_epi64((const Bytes*)q));
  Bytes order = STEP == 4 ? _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
                          : _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 8, 11, 9, 12, 10, 13, -1, -1);
  return _mm_shuffle_epi8(both, order);
}

struct Sums {
  __m128i of[4];

  Sums() { for (__m128i& each : of) each = _mm_set1_epi32(1 << (PRECISION - 1)); }
  void add(Bytes low, Bytes high, const int16_t* shares) {
    int32_t both;
    memcpy(&both, shares, sizeof both);
    __m128i share = _mm_set1_epi32(both), none = _mm_setzero_si128();
    Bytes parts[] = {low_pairs(low, none), high_pairs(low, none), low_pairs(high, none), high_pairs(high, none)};
    UNROLL for (Int i = 0; i < 4; i++) of[i] = _mm_add_epi32(of[i], _mm_madd_epi16(parts[i], share));
  }
  Bytes rounded() const {
    __m128i whole[4];
    UNROLL for (Int i = 0; i < 4; i++) whole[i] = _mm_srli_epi32(of[i], PRECISION);
    return _mm_packus_epi16(_mm_packs_epi32(whole[0], whole[1]), _mm_packs_epi32(whole[2], whole[3]));
  }
};
#else
struct Bytes { uint8_t of[WIDE]; };
INLINE Bytes bytes_at(const uint8_t* p) { Bytes v; memcpy(&v, p, WIDE); return v; }
INLINE Bytes pairs_from(Bytes a, Bytes b, Int first) {
  Bytes v;
  for (Int i = 0; i < WIDE; i++) v.of[i] = (i % 2 ? b : a).of[first + i / 2];
  return v;
}
INLINE Bytes low_pairs(Bytes a, Bytes b) { return pairs_from(a, b, 0); }
INLINE Bytes high_pairs(Bytes a, Bytes b) { return pairs_from(a, b, WIDE / 2); }
INLINE uint32_t word(Bytes v, Int i) { uint32_t w; memcpy(&w, v.of + 4 * i, 4); return w; }

template <Int STEP> INLINE Bytes pixel_pairs(const uint8_t* p, const uint8_t* q) {
  Bytes v;
  for (Int i = 0; i < WIDE; i++) v.of[i] = (i < 8 ? p : q)[i % 8 / 2 + i % 2 * STEP];
  return v;
}

struct Sums {
  int32_t of[WIDE];

  Sums() { for (int32_t& each : of) each = 1 << (PRECISION - 1); }
  void add(Bytes low, Bytes high, const int16_t* shares) {
    for (Int i = 0; i < 8; i++) {
      of[i] += low.of[2 * i] * shares[0] + low.of[2 * i + 1] * shares[1];
      of[8 + i] += high.of[2 * i] * shares[0] + high.of[2 * i + 1] * shares[1];
    }
  }
  Bytes rounded() const {
    Bytes v;
    for (Int i = 0; i < WIDE; i++) v.of[i] = uint8_t(of[i] >> PRECISION);
    return v;
  }
};
#endif

// Four rows at once. A new pixel is stored with four bytes, of which the next one overwrites what is no channel of it.
template <Int STEP> APART void across(const uint8_t* const* rows, uint8_t* to, Int pitch, const Covered& columns, Int size) {
  for (Int q = 0; q < size; q++) {
    const int16_t* share = columns.shares + 2 * columns.most * q;
    Sums sums;
    for (Int i = 0, at = columns.first[q] * STEP; i < columns.pairs[q]; i++, at += 2 * STEP)
      sums.add(pixel_pairs<STEP>(rows[0] + at, rows[1] + at), pixel_pairs<STEP>(rows[2] + at, rows[3] + at), share + 2 * i);
    Bytes y = sums.rounded();
    UNROLL for (Int r = 0; r < TOGETHER; r++) {
      uint32_t pixel = word(y, r);
      memcpy(to + r * pitch + q * 3, &pixel, 4);
    }
  }
}

APART void across_grey(const uint8_t* row, uint8_t* to, const Covered& columns, Int size) {
  for (Int q = 0; q < size; q++) {
    const int16_t* share = columns.shares + 2 * columns.most * q;
    int32_t sum = 1 << (PRECISION - 1);
    for (Int x = 0; x < 2 * columns.pairs[q]; x++) sum += row[columns.first[q] + x] * share[x];
    to[q] = uint8_t(sum >> PRECISION);
  }
}

// A new row, of all rows that it covers.
APART void down(const uint8_t* from, Int pitch, uint8_t* to, Int length, const int16_t* shares, Int pairs) {
  for (Int at = 0; at < length; at += WIDE) {
    Sums sums;
    const uint8_t* row = from + at;
    for (Int i = 0; i < pairs; i++, row += 2 * pitch) {
      Bytes one = bytes_at(row), next = bytes_at(row + pitch);
      sums.add(low_pairs(one, next), high_pairs(one, next), shares + 2 * i);
    }
    Bytes y = sums.rounded();
    memcpy(to + at, &y, least(WIDE, length - at));
  }
}
}

// image: [H, W, step], of which the first `channels` count; out: [P, Q, channels]. No pixel counts outside of `rows` ×
// `columns` from (top, left) on. In these a part of any real extent, high × wide from (y, x) on, becomes P × Q pixels.
// Channels and step: 1 and 1, or 3 and 3 or 4.
KERNEL(resize_image)(Context* context, const uint8_t* image, uint8_t* out, Int H, Int W, Int step, Int channels, Int top,
                     Int left, Int rows, Int columns, double y, double x, double high, double wide, Int P, Int Q) {
  context->parts(1, 1, [=](Int, Int, Workspace& space) {
    Covered lines(space, rows, y, high, P), pixels(space, columns, x, wide, Q);
    Int start = lines.first[0], end = lines.first[P - 1] + 2 * lines.pairs[P - 1], pitch = up(Q * channels + 4, WIDE);
    uint8_t* narrow = space.take<uint8_t>(up(end - start, TOGETHER) * pitch);
    Int line = W * step, safe = most(0, H - LAST);
    uint8_t* last = space.take<uint8_t>((H - safe) * line + WIDE);
    memcpy(last, image + safe * line, (H - safe) * line);
    memset(last + (H - safe) * line, 0, WIDE);
    for (Int row = start; row < end; row += TOGETHER) {
      const uint8_t* from[TOGETHER];
      uint8_t* to = narrow + (row - start) * pitch;
      for (Int r = 0; r < TOGETHER; r++) {
        Int place = top + least(row + r, rows - 1);
        from[r] = (place < safe ? image + place * line : last + (place - safe) * line) + left * step;
      }
      if (channels == 1) for (Int r = 0; r < TOGETHER; r++) across_grey(from[r], to + r * pitch, pixels, Q);
      else (step == 3 ? across<3> : across<4>)(from, to, pitch, pixels, Q);
    }
    for (Int p = 0; p < P; p++)
      down(narrow + (lines.first[p] - start) * pitch, pitch, out + p * Q * channels, Q * channels,
           lines.shares + 2 * lines.most * p, lines.pairs[p]);
  });
}
