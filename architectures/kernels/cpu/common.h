// What the C++ kernels share: vectors of 16 channels, their exponential, threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

constexpr int64_t LANES = 16;
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

// `count` numbers from memory (at most LANES); the lanes beyond them are zero. Where a processor can leave lanes out,
// the last vector of a row, or the only one of a narrow row, costs no call of memcpy.
[[gnu::always_inline]] static inline Vector load(const float *from, int64_t count) {
    Vector lanes = {};
    if (count >= LANES)
        std::memcpy(&lanes, from, sizeof(lanes));
    else
#ifdef __AVX512F__
        lanes = (Vector)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
        std::memcpy(&lanes, from, count * sizeof(float));
#endif
    return lanes;
}

[[gnu::always_inline]] static inline void store(float *to, Vector lanes, int64_t count) {
    if (count >= LANES)
        std::memcpy(to, &lanes, sizeof(lanes));
    else
#ifdef __AVX512F__
        _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)lanes);
#else
        std::memcpy(to, &lanes, count * sizeof(float));
#endif
}

// bfloat16 in memory: the upper half of a float32's bits. Computing is always in float32.
typedef uint16_t Half;
typedef Half Halves __attribute__((vector_size(2 * LANES)));

[[gnu::always_inline]] static inline Vector load(const Half *from, int64_t count) {
    Halves lanes = {};
    if (count >= LANES)
        std::memcpy(&lanes, from, sizeof(lanes));
    else
#if defined(__AVX512BW__) && defined(__AVX512VL__)
        lanes = (Halves)_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), from);
#else
        std::memcpy(&lanes, from, count * sizeof(Half));
#endif
    return (Vector)(__builtin_convertvector(lanes, Integers) << 16);
}

// Rounds to the nearest, to even between two; NaN stays NaN.
[[gnu::always_inline]] static inline void store(Half *to, Vector lanes, int64_t count) {
    const Integers bits = (Integers)lanes;
    Integers rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    rounded = lanes == lanes ? rounded : 0x7FC0;
    const Halves halves = __builtin_convertvector(rounded, Halves);
    if (count >= LANES)
        std::memcpy(to, &halves, sizeof(halves));
    else
#if defined(__AVX512BW__) && defined(__AVX512VL__)
        _mm256_mask_storeu_epi16(to, (__mmask16)((1u << count) - 1), (__m256i)halves);
#else
        std::memcpy(to, &halves, count * sizeof(Half));
#endif
}

static inline float total(Vector lanes) {
    float sum = 0;
    for (int64_t lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

// Calls run(place, lanes) for every vector of [first, end); the count of lanes is a constant for all but the last.
template <class Run> [[gnu::always_inline]] static inline void vectors(int64_t first, int64_t end, const Run &run) {
    int64_t i = first;
    for (; i + LANES <= end; i += LANES) run(i, LANES);
    if (i < end) run(i, end - i);
}

// e^x within 2 units in the last place: x = n ln 2 + r, a polynomial in r, and 2^n by its bits. A result below
// the smallest normal number is 0, NaN stays NaN. Written out, so that no -ffast-math is needed to vectorise it.
[[gnu::always_inline]] static inline Vector exponential(Vector x) {
#ifdef __AVX512F__
    // The same bits in fewer instructions.
    const __mmask16 seen = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);  // NaN too
    x = (Vector)_mm512_min_ps(_mm512_set1_ps(89.0f), (__m512)x);
    const Vector n = (Vector)_mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT);
#else
    const float shift = 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number, in the lowest bits
    const Integers below = x < -87.3f;
    x = x > 89.0f ? Vector{} + 89.0f : x;
    x = below ? Vector{} - 87.3f : x;
    const Vector rounded = x * 1.44269504088896341f + shift;
    const Vector n = rounded - shift;
#endif
    const Vector r = (x - n * 0.693359375f) + n * 2.12194440054690583e-4f;
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
#ifdef __AVX512F__
    return (Vector)_mm512_maskz_scalef_ps(seen, (__m512)p, (__m512)n);
#else
    const Integers power = ((Integers)rounded - 0x4B400000 + 127) << 23;
    p *= (Vector)power;
    return below ? Vector{} : p;
#endif
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
