// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// The structs of DLPack 0.8 (github.com/dmlc/dlpack), with which libraries exchange arrays without
// a copy, and the conversions between them and Array. A Python capsule named "dltensor" holds a
// DLManagedTensor. Whoever takes the tensor renames the capsule to "used_dltensor", and later calls
// the deleter.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "array.h"

extern "C" {

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null if the tensor is contiguous
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

}  // extern "C"

namespace torchbeast {

constexpr int32_t kDLCPU = 1;

// Whether the CPU can read the memory: it is plain memory, or page-locked for CUDA (3) or ROCm
// (11).
inline bool IsHostMemory(int32_t device_type) {
  return device_type == kDLCPU || device_type == 3 || device_type == 11;
}

// The tensor shares the array's memory, and keeps it alive until its deleter is called.
inline DLManagedTensor* ToDLPack(const Array& array) {
  struct Context {
    DLManagedTensor tensor;
    Array array;
    std::vector<int64_t> strides;
  };
  auto* context = new Context{{}, array, {}};
  const Shape& shape = context->array.shape();
  context->strides.resize(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    context->strides[i] = stride;
    stride *= shape[i];
  }
  DLTensor& tensor = context->tensor.dl_tensor;
  tensor.data = array.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = static_cast<int32_t>(shape.size());
  tensor.dtype = {static_cast<uint8_t>(array.dtype().kind), array.dtype().bits, 1};
  tensor.shape = const_cast<int64_t*>(shape.data());
  tensor.strides = context->strides.data();
  context->tensor.manager_ctx = context;
  context->tensor.deleter = [](DLManagedTensor* self) {
    delete static_cast<Context*>(self->manager_ctx);
  };
  return &context->tensor;
}

// Returns an array in the same memory, which `owner` keeps alive, or a copy if the tensor is not
// contiguous. Throws std::invalid_argument if the tensor is not in CPU memory or not of numbers.
inline Array FromDLPack(const DLTensor& tensor, std::shared_ptr<void> owner) {
  if (!IsHostMemory(tensor.device.device_type)) {
    throw std::invalid_argument("expected an array in CPU memory, seen DLPack device type " +
                                std::to_string(tensor.device.device_type) + "; use .cpu()");
  }
  const DType dtype{static_cast<Kind>(tensor.dtype.code), tensor.dtype.bits};
  if (tensor.dtype.lanes != 1 || tensor.dtype.bits == 0 || tensor.dtype.bits % 8 != 0 ||
      tensor.dtype.code == 3) {
    throw std::invalid_argument("expected a numeric dtype, seen " + dtype.name());
  }
  const Shape shape(tensor.shape, tensor.shape + tensor.ndim);
  auto* data = static_cast<uint8_t*>(tensor.data) + tensor.byte_offset;
  const int64_t count = NumElements(shape);
  bool contiguous = true;
  int64_t expected = 1;
  for (size_t i = shape.size(); tensor.strides != nullptr && i-- > 0;) {
    contiguous = contiguous && (shape[i] == 1 || tensor.strides[i] == expected);
    expected *= shape[i];
  }
  if (contiguous || count == 0) return Array(dtype, shape, std::move(owner), data);

  Array copy = Array::Empty(dtype, shape);
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t i = 0, from = 0; i < count; ++i) {
    std::memcpy(copy.data() + i * dtype.size(), data + from * dtype.size(), dtype.size());
    for (size_t d = shape.size(); d-- > 0;) {  // goes to the next index, last dimension first
      from += tensor.strides[d];
      if (++index[d] < shape[d]) break;
      from -= shape[d] * tensor.strides[d];
      index[d] = 0;
    }
  }
  return copy;
}

}  // namespace torchbeast
