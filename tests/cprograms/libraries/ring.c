/*
 * Each rank of MPI sends to the next what it can check: messages that fit a packet, and such that do not.
 * An argument says how often.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 65536

int main(int argc, char **argv)
{
    static unsigned char in[MOST], out[MOST];
    int rank, size, wrong = 0, all = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int times = argc > 1 ? atoi(argv[1]) : 1; times; times--) {
        for (int length = 1; length <= MOST; length *= 4)
            for (int round = 0; round < 5; round++) {
                int before = (rank + size - 1) % size;

                for (int i = 0; i < length; i++)
                    out[i] = rank * 31 + round * 7 + i;
                MPI_Sendrecv(out, length, MPI_BYTE, (rank + 1) % size, round, in, length, MPI_BYTE, before, round,
                             MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                for (int i = 0; i < length; i++)
                    wrong += in[i] != (unsigned char)(before * 31 + round * 7 + i);
            }
        MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (!rank) {
            printf("ring of %d: %d wrong\n", size, all);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return !!all;
}
