// comm_stream_cuda_test.cpp - the priority of the communication stream
#include "llmc/comm/comm_stream.h"

#include <cuda_runtime_api.h>

#include "kernels/device/device.h"
#include "test/support/support.h"

TEST_CASE("communication has the highest priority, and computation the lowest", "[communicator][stand_in]") {
    if (device::count() == 0) test::skip("this machine has no GPU");
    int lowest = 0, highest = 0, of_comm = 1, of_compute = 1;
    REQUIRE(cudaDeviceGetStreamPriorityRange(&lowest, &highest) == cudaSuccess);
    llmc::CommStream().enqueue([&](device::StreamRef stream) { cudaStreamGetPriority(stream, &of_comm); });
    const device::Stream compute;
    cudaStreamGetPriority(compute, &of_compute);
    CHECK(of_comm == highest);
    CHECK(of_compute == lowest);
}
