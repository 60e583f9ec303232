// checked_cudnn.h - CHECKED() for cuDNN and its frontend, and the owner of a handle
#pragma once
#include <cudnn_frontend.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "kernels/device/checked.h"

namespace device {

// The library's messages, as part of one line.
inline std::string on_one_line(std::string words) {
    std::ranges::replace_if(words, [](unsigned char c) { return c < ' ' || c == 127; }, ' ');
    return words;
}
// The library's message about its last error.
inline std::string last_words_of_cudnn() {
    char text[1024] = "";
    cudnnGetLastErrorString(text, sizeof text);
    return on_one_line(text);
}

struct DestroyCudnn {
    void operator()(cudnnHandle_t handle) const noexcept { cudnnDestroy(handle); }
};

}  // namespace device

inline std::string fault_of(cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return {};
    return std::string(cudnnGetErrorString(status)) + "; " + device::last_words_of_cudnn();
}
inline std::string fault_of(cudnn_frontend::error_t status) {
    if (status.is_good()) return {};
    std::ostringstream code;
    code << status.get_code();
    return code.str() + ", " + status.get_message() + "; cuDNN: " + device::last_words_of_cudnn();
}

namespace device {

// Created on first use, so that construction needs no GPU.
class CudnnHandle {
public:
    cudnnHandle_t get() {
        if (handle_) return handle_.get();
        cudnnHandle_t created = nullptr;
        CHECKED(cudnnCreate(&created));
        handle_.reset(created);
        return created;
    }

private:
    std::unique_ptr<cudnnContext, DestroyCudnn> handle_;
};

}  // namespace device
