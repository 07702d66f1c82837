/* The peer OpenMPI: mpirun -np N openmpi BYTES... prints a line of figures (figures.h) for each size. */
#include <mpi.h>
#include <string.h>

#include "figures.h"

int main(int argc, char **argv)
{
    static double seconds[FIGURES_ITERATIONS_MAX];
    int rank, size;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int a = 1; a < argc; a++) {
        uint64_t bytes = strtoull(argv[a], NULL, 10);
        int count = (int)(bytes / sizeof(float)), n = figures_iterations(bytes, 0);
        float *in = malloc(bytes), *out = malloc(bytes);
        for (int i = 0; i < count; i++)
            in[i] = (float)(i % 1000 + rank);
        memset(out, 0, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = -n / 5 - 1; i < n; i++) {
            double began = figures_now();
            MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (i >= 0)
                seconds[i] = figures_now() - began;
        }
        for (int i = 0; i < count; i++)
            if (out[i] != (float)(i % 1000 * size + size * (size - 1) / 2))
                MPI_Abort(MPI_COMM_WORLD, 1);
        if (rank == 0)
            figures_print(bytes, seconds, n);
        free(in);
        free(out);
    }
    MPI_Finalize();
    return 0;
}
