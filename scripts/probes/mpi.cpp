// mpi.cpp - the MPI features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  MPI
// expected: Open MPI 4 or MPICH 4
// packages: libopenmpi-dev openmpi-bin
// version:  OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION.OMPI_RELEASE_VERSION MPICH_VERSION
#include <mpi.h>

int main() {
    int provided = 0, rank = 0, done = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm machine;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    float value = 1;
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, machine, &request);
    while (!done) MPI_Testall(1, &request, &done, MPI_STATUSES_IGNORE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return MPI_Finalize();
}
