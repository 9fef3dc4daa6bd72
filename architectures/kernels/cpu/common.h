// What the C++ kernels share: loops over vectors, threads, sums of parts.
#pragma once
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "vector.h"

// Calls run(place, lanes) for every vector of [first, end); the count of lanes is a constant for all but the last.
template <class Run> [[gnu::always_inline]] static inline void vectors(int64_t first, int64_t end, const Run &run) {
    int64_t i = first;
    for (; i + LANES <= end; i += LANES) run(i, LANES);
    if (i < end) run(i, end - i);
}

#ifdef __linux__
// PyTorch's own pool of threads, where it is OpenMP's of GNU: a second pool would compete with it for the cores.
extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
#endif

// One copy of the task's code for all who call it: two might round differently, where the compiler has the choice of
// which product a sum takes in.
template <class Task> [[gnu::noinline]] static void run_task(const Task &task, int64_t i) { task(i); }

// Calls task(0), ..., task(count - 1), each once, on so many threads.
template <class Task> static void parallel(int64_t count, int64_t threads, const Task &task) {
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t i; (i = next++) < count;) run_task(task, i);
    };
    threads = std::min(threads, count);
#ifdef __linux__
    if (threads > 1 && GOMP_parallel) {
        GOMP_parallel([](void *w) { (*static_cast<decltype(work) *>(w))(); }, &work, threads, 0);
        return;
    }
#endif
    std::vector<std::thread> others;
    for (int64_t i = 1; i < threads; i++) others.emplace_back(work);
    work();
    for (std::thread &other : others) other.join();
}

// sums[i] = parts[0][i] + parts[1][i] + ..., always in this order; 0 where there are none.
static inline void add_parts(const float *parts, int64_t count, int64_t size, float *sums) {
    if (count == 0) return std::fill(sums, sums + size, 0.0f);
    std::memcpy(sums, parts, size * sizeof(float));
    for (int64_t part = 1; part < count; part++)
        for (int64_t i = 0; i < size; i++) sums[i] += parts[part * size + i];
}
