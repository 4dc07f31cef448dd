// float32 packed into 16 bits for messages, and back.
#include "halves.hpp"
#include "threads.hpp"

KERNEL(pack_bfloat16)(Context* context, const uint32_t* x, uint16_t* packed, Int count) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) packed[i] = to_bfloat16(x[i]);
  });
}

KERNEL(pack_half)(Context* context, const uint32_t* x, uint16_t* packed, Int count) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) packed[i] = to_half(x[i]);
  });
}

KERNEL(unpack_bfloat16)(Context* context, const uint16_t* packed, float* x, Int count, bool accumulate) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    if (accumulate) for (Int i = first; i < end; i++) x[i] += from_bfloat16(packed[i]);
    else for (Int i = first; i < end; i++) x[i] = from_bfloat16(packed[i]);
  });
}

KERNEL(unpack_half)(Context* context, const uint16_t* packed, float* x, Int count, bool accumulate) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    if (accumulate) for (Int i = first; i < end; i++) x[i] += from_half(packed[i]);
    else for (Int i = first; i < end; i++) x[i] = from_half(packed[i]);
  });
}
