// peaks_test.cpp - a GPU's peak comes from its own data sheet, or is unknown
#include "kernels/device/peaks.h"

#include "test/support/catch.h"

TEST_CASE("the peaks of a GPU are found by its full name", "[device][one_order]") {
    const auto bf16 = [](const char* name) {
        const auto peaks = device::peaks_of(name);
        return peaks ? peaks->bf16 * 1e-12 : 0;
    };
    CHECK(bf16("NVIDIA H200") == 989.4);
    CHECK(bf16("NVIDIA H100 80GB HBM3") == 989.4);
    CHECK(bf16("NVIDIA H100 PCIe") == 756);
    CHECK(bf16("NVIDIA A100-SXM4-40GB") == 312);
    CHECK(bf16("A100-SXM4-40GB") == 312);  // the name that older drivers report
    CHECK(bf16("NVIDIA GeForce RTX 4090") == 165.2);
    CHECK(device::peaks_of("NVIDIA GeForce RTX 3090")->fp32 == 35.6e12);
    // similar names of GPUs with other speeds
    for (const char* name : {"NVIDIA H200 NVL", "NVIDIA H100 NVL", "NVIDIA GH200 480GB",
                             "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D",
                             "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A10G", "NVIDIA A100X",
                             "NVIDIA H100 80GB HBM2e", "NVIDIA GH200 144G HBM3e", "NVIDIA L40", "NVIDIA", "",
                             "AMD L4"}) {
        CAPTURE(std::string(name));
        CHECK(!device::peaks_of(name));
    }
}
