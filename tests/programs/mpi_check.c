/* Two or more MPI processes that check all data they exchange. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size;

static void expect(const char *what, long step, long long got, long long wanted) {
    if (got != wanted) {
        printf("rank %d: %s, step %ld: %lld instead of %lld\n", rank, what, step, got, wanted);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* The byte at offset `at` of the data that process `from` sends in `step`. */
static unsigned char byte_of(int from, int step, int at) {
    return (unsigned char)(from * 31 + step * 7 + at * 13 + (at >> 8));
}

static void collectives(int rounds) {
    for (int round = 0; round < rounds; round++) {
        long long mine = rank + round, sum = 0;
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
        expect("allreduce", round, sum, (long long)size * round + (long long)size * (size - 1) / 2);
        double x = rank == round % size ? round * 0.5 : -1;
        MPI_Bcast(&x, 1, MPI_DOUBLE, round % size, MPI_COMM_WORLD);
        expect("broadcast", round, (long long)(x * 2), round);
    }
}

static void ring(int rounds) {
    enum { MOST = 1 << 20 };
    unsigned char *out = malloc(MOST), *in = malloc(MOST);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int length = 1; length <= MOST; length *= 4) {
        for (int round = 0; round < rounds; round++) {
            for (int i = 0; i < length; i++) {
                out[i] = byte_of(rank, round, i);
                in[i] = 0;
            }
            MPI_Sendrecv(out, length, MPI_BYTE, next, round, in, length, MPI_BYTE, before, round, MPI_COMM_WORLD,
                MPI_STATUS_IGNORE);
            for (int i = 0; i < length; i++)
                expect("send and receive", length, in[i], byte_of(before, round, i));
        }
    }
    free(out);
    free(in);
}

enum { WORDS = 4096 };

/* The window of this process. At rank 0 the last two words are counters. */
static long long *words;
static MPI_Win window;

static void transfers(int round) {
    /* Each process writes its neighbour's words and reads them back. */
    static long long there[WORDS], back[WORDS];
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int i = 0; i < WORDS; i++)
        there[i] = rank * 1000000LL + i + round;
    MPI_Win_fence(0, window);
    MPI_Put(there, WORDS, MPI_LONG_LONG, next, 0, WORDS, MPI_LONG_LONG, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < WORDS; i++)
        expect("put", round, words[i], before * 1000000LL + i + round);
    MPI_Get(back, WORDS, MPI_LONG_LONG, next, 0, WORDS, MPI_LONG_LONG, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < WORDS; i++)
        expect("get", round, back[i], rank * 1000000LL + i + round);
}

static void atomics(int from_round, int rounds) {
    static long long seen = -1;
    long long one = 1, old = 0;
    MPI_Win_lock_all(0, window);
    for (int round = from_round; round < from_round + rounds; round++) {
        /* All processes increment the counter at rank 0; the values that each fetches increase. */
        MPI_Fetch_and_op(&one, &old, MPI_LONG_LONG, 0, WORDS, MPI_SUM, window);
        MPI_Win_flush(0, window);
        expect("fetch-and-add grows", round, old > seen && old < (long long)size * (from_round + rounds), 1);
        seen = old;
        /* Each process in turn claims the second word by compare-and-swap. */
        long long from = (long long)round * size + rank, to = from + 1;
        for (;;) {
            MPI_Compare_and_swap(&to, &from, &old, MPI_LONG_LONG, 0, WORDS + 1, window);
            MPI_Win_flush(0, window);
            if (old == from)
                break;
            expect("compare-and-swap waits for its turn", round, old < from, 1);
            /* A waiting process must let MPI make progress. */
            int any;
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE);
        }
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        expect("all fetch-and-adds", from_round, words[WORDS], (long long)size * (from_round + rounds));
        expect("all compare-and-swaps", from_round, words[WORDS + 1], (long long)size * (from_round + rounds));
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int times = argc > 1 ? atoi(argv[1]) : 1;
    expect("there are several processes", 0, size > 1, 1);
    MPI_Win_allocate((WORDS + 2) * sizeof *words, sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD, &words, &window);
    for (int i = 0; i < WORDS + 2; i++)
        words[i] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int time = 0; time < times; time++) {
        collectives(50);
        ring(2);
        transfers(time);
        atomics(time * 50, 50);
    }
    MPI_Win_free(&window);
    if (rank == 0)
        printf("all numbers are right\n");
    MPI_Finalize();
    return 0;
}
