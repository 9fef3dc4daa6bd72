// The pointwise operations of a transformer, each in one pass over memory and with its gradient,
// for CPUs: RMSNorm, activation times gate, rotary positions, cross-entropy.
//
// Numbers are float32 or bfloat16 in memory, as the flags say, and float32 in between. A row is the numbers of one
// token. What several tasks add to (gradients of weights) each writes apart, and it is added in a fixed order.
#include <cmath>

#include "common.h"

namespace {

constexpr int64_t NUMBERS = 1 << 14;  // of a task, about

template <class Number> struct Type {
    typedef Number type;
};

// Calls run(Type<float>) or run(Type<Half>).
template <class Run> void with_type(int64_t half, const Run &run) {
    if (half)
        run(Type<Half>());
    else
        run(Type<float>());
}

int64_t rows_of_task(int64_t width) { return std::max<int64_t>(1, NUMBERS / std::max<int64_t>(1, width)); }

int64_t tasks_of(int64_t rows, int64_t span) { return (rows + span - 1) / span; }

[[gnu::always_inline]] inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// y = x / rms(x) * w.
template <class In, class Out>
void norm_rows(int64_t first, int64_t end, int64_t width, float eps, const In *x, const float *w, Out *y) {
    for (int64_t row = first; row < end; row++) {
        const In *x_row = x + row * width;
        Vector squares = {};
        vectors(0, width, [&](int64_t i, int64_t lanes) {
            const Vector v = load(x_row + i, lanes);
            squares += v * v;
        });
        const float r = 1.0f / std::sqrt(total(squares) / width + eps);
        vectors(0, width, [&](int64_t i, int64_t lanes) {
            store(y + row * width + i, load(x_row + i, lanes) * r * load(w + i, lanes), lanes);
        });
    }
}

// With r = 1 / rms(x): dx = r (dy w - x r^2 mean(x dy w)), and dw += r x dy.
template <class In, class Out>
void norm_slopes(int64_t first, int64_t end, int64_t width, float eps, const In *x, const float *w, const Out *dy,
                 In *dx, float *dw) {
    std::vector<Vector> sums((width + LANES - 1) / LANES);
    for (int64_t row = first; row < end; row++) {
        const In *x_row = x + row * width;
        const Out *dy_row = dy + row * width;
        Vector squares = {}, products = {};
        vectors(0, width, [&](int64_t i, int64_t lanes) {
            const Vector v = load(x_row + i, lanes);
            squares += v * v;
            products += v * load(dy_row + i, lanes) * load(w + i, lanes);
        });
        const float r = 1.0f / std::sqrt(total(squares) / width + eps);
        const float along = r * r * total(products) / width;
        vectors(0, width, [&](int64_t i, int64_t lanes) {
            const Vector v = load(x_row + i, lanes), d = load(dy_row + i, lanes);
            store(dx + row * width + i, r * (d * load(w + i, lanes) - along * v), lanes);
            sums[i / LANES] += d * v * r;
        });
    }
    for (int64_t i = 0; i < width; i += LANES) store(dw + i, sums[i / LANES], width - i);
}

enum Activation { SILU, GELU_TANH, GELU };

struct Curve {
    Vector value, slope;
};

// Of an activation at x.
template <Activation kind> [[gnu::always_inline]] inline Curve curve(Vector x) {
    if (kind == SILU) {
        const Vector s = sigmoid(x);
        return {x * s, s * (1.0f + x * (1.0f - s))};
    }
    if (kind == GELU_TANH) {  // (1 + tanh(z)) / 2 = sigmoid(2 z)
        const float a = 1.5957691216057308f, b = 0.044715f;
        const Vector s = sigmoid(a * x * (1.0f + b * x * x));
        return {x * s, s + x * s * (1.0f - s) * a * (1.0f + 3.0f * b * x * x)};
    }
    // erf by Abramowitz and Stegun 7.1.26, within 1.5e-7, as PyTorch has it.
    const Vector z = (x < 0 ? -x : x) * 0.70710678118654752f, e = exponential(-z * z);
    const Vector t = 1.0f / (1.0f + 0.3275911f * z);
    Vector p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Vector tail = 0.5f * p * t * e;  // of the normal distribution, beyond |x|
    const Vector s = x < 0 ? tail : 1.0f - tail;
    return {x * s, s + x * e * 0.3989422804014327f};
}

template <Activation kind, class Number>
void gate_forward(int64_t first, int64_t end, const Number *x, const Number *other, Number *y) {
    vectors(first, end, [&](int64_t i, int64_t lanes) {
        const Vector value = curve<kind>(load(x + i, lanes)).value;
        store(y + i, other ? value * load(other + i, lanes) : value, lanes);
    });
}

template <Activation kind, class Number>
void gate_backward(int64_t first, int64_t end, const Number *x, const Number *other, const Number *dy, Number *dx,
                   Number *d_other) {
    vectors(first, end, [&](int64_t i, int64_t lanes) {
        const Curve at = curve<kind>(load(x + i, lanes));
        Vector d = load(dy + i, lanes);
        if (other) {
            store(d_other + i, d * at.value, lanes);
            d *= load(other + i, lanes);
        }
        store(dx + i, d * at.slope, lanes);
    });
}

// Calls run(Kind<...>) for the activation of a number.
template <Activation number> struct Kind {
    static constexpr Activation value = number;
};

template <class Run> void with_activation(int64_t kind, const Run &run) {
    if (kind == SILU)
        run(Kind<SILU>());
    else if (kind == GELU_TANH)
        run(Kind<GELU_TANH>());
    else
        run(Kind<GELU>());
}

// The columns [0, never) and [never + 1, width) of a row; all where `never` is negative.
template <class Run> void columns(int64_t width, int64_t never, const Run &run) {
    if (never < 0) return run(0, width);
    run(0, never);
    run(never + 1, width);
}

// log of the sum of e^x.
template <class Number> float log_sum(const Number *x, int64_t width, int64_t never) {
    Vector most = Vector{} - INFINITY;
    columns(width, never, [&](int64_t first, int64_t end) {
        int64_t i = first;
        for (; i + LANES <= end; i += LANES) most = larger(load(x + i, LANES), most);
        const Vector rest = load(x + i, end - i);
        for (int64_t lane = 0; lane < end - i; lane++) most[lane] = std::max(most[lane], rest[lane]);
    });
    const float top = largest(most);
    Vector sums = {};
    columns(width, never, [&](int64_t first, int64_t end) {
        int64_t i = first;
        for (; i + LANES <= end; i += LANES) sums += exponential(load(x + i, LANES) - top);
        const Vector rest = exponential(load(x + i, end - i) - top);
        for (int64_t lane = 0; lane < end - i; lane++) sums[lane] += rest[lane];
    });
    return top + std::log(total(sums));
}

float number(const float *at) { return *at; }
float number(const Half *at) { return load(at, 1)[0]; }

template <class Number>
void softmax_slopes(const Number *x, int64_t width, int64_t never, int64_t target, float log_total, float d,
                    Number *dx) {
    vectors(0, width, [&](int64_t i, int64_t lanes) {
        store(dx + i, d * exponential(load(x + i, lanes) - log_total), lanes);
    });
    const Vector one = Vector{} + d * (exponential(Vector{} + (number(x + target) - log_total))[0] - 1.0f);
    if (never >= 0) store(dx + never, Vector{}, 1);
    if (target != never) store(dx + target, one, 1);
}

}  // namespace

extern "C" {

const char *instruction_set() { return INSTRUCTION_SET; }

#if defined(__clang__)
const char *compiler() { return "Clang " __clang_version__; }
#else
const char *compiler() { return "GCC " __VERSION__; }
#endif

// y = x / rms(x) * w, of rows. x and dx are bfloat16 if `x_half`, y and dy if `y_half`; w is float32.
void norm_forward(int64_t rows, int64_t width, int64_t threads, int64_t x_half, int64_t y_half, double eps,
                  const void *x, const float *w, void *y) {
    const int64_t span = rows_of_task(width);
    with_type(x_half, [&](auto in) {
        with_type(y_half, [&](auto out) {
            typedef typename decltype(in)::type In;
            typedef typename decltype(out)::type Out;
            parallel(tasks_of(rows, span), threads, [&](int64_t task) {
                norm_rows(task * span, std::min(rows, (task + 1) * span), width, eps, (const In *)x, w, (Out *)y);
            });
        });
    });
}

void norm_backward(int64_t rows, int64_t width, int64_t threads, int64_t x_half, int64_t y_half, double eps,
                   const void *x, const float *w, const void *dy, void *dx, float *dw) {
    const int64_t span = rows_of_task(width), tasks = tasks_of(rows, span);
    std::vector<float> parts(tasks * width);
    with_type(x_half, [&](auto in) {
        with_type(y_half, [&](auto out) {
            typedef typename decltype(in)::type In;
            typedef typename decltype(out)::type Out;
            parallel(tasks, threads, [&](int64_t task) {
                norm_slopes(task * span, std::min(rows, (task + 1) * span), width, eps, (const In *)x, w,
                            (const Out *)dy, (In *)dx, &parts[task * width]);
            });
        });
    });
    add_parts(parts.data(), tasks, width, dw);
}

// y = activation(x) other; `other` may be null, for y = activation(x). All of one type.
void activation_forward(int64_t count, int64_t kind, int64_t threads, int64_t half, const void *x, const void *other,
                        void *y) {
    with_type(half, [&](auto type) {
        with_activation(kind, [&](auto activation) {
            typedef typename decltype(type)::type Number;
            parallel(tasks_of(count, NUMBERS), threads, [&](int64_t task) {
                gate_forward<decltype(activation)::value>(task * NUMBERS, std::min(count, (task + 1) * NUMBERS),
                                                          (const Number *)x, (const Number *)other, (Number *)y);
            });
        });
    });
}

void activation_backward(int64_t count, int64_t kind, int64_t threads, int64_t half, const void *x, const void *other,
                         const void *dy, void *dx, void *d_other) {
    with_type(half, [&](auto type) {
        with_activation(kind, [&](auto activation) {
            typedef typename decltype(type)::type Number;
            parallel(tasks_of(count, NUMBERS), threads, [&](int64_t task) {
                gate_backward<decltype(activation)::value>(task * NUMBERS, std::min(count, (task + 1) * NUMBERS),
                                                           (const Number *)x, (const Number *)other,
                                                           (const Number *)dy, (Number *)dx, (Number *)d_other);
            });
        });
    });
}

// nats = log of the sum of e^x minus x at the target, of rows; `logs` keeps the former. Column `never` is left out
// where it is not negative.
void entropy_forward(int64_t rows, int64_t width, int64_t never, int64_t threads, int64_t half, const void *x,
                     const int64_t *target, float *logs, float *nats) {
    const int64_t span = rows_of_task(width);
    with_type(half, [&](auto type) {
        typedef typename decltype(type)::type Number;
        parallel(tasks_of(rows, span), threads, [&](int64_t task) {
            for (int64_t row = task * span; row < std::min(rows, (task + 1) * span); row++) {
                const Number *x_row = (const Number *)x + row * width;
                logs[row] = log_sum(x_row, width, never);
                nats[row] = target[row] == never ? INFINITY : logs[row] - number(x_row + target[row]);
            }
        });
    });
}

void entropy_backward(int64_t rows, int64_t width, int64_t never, int64_t threads, int64_t half, const void *x,
                      const int64_t *target, const float *logs, const float *d_nats, void *dx) {
    const int64_t span = rows_of_task(width);
    with_type(half, [&](auto type) {
        typedef typename decltype(type)::type Number;
        parallel(tasks_of(rows, span), threads, [&](int64_t task) {
            for (int64_t row = task * span; row < std::min(rows, (task + 1) * span); row++)
                softmax_slopes((const Number *)x + row * width, width, never, target[row], logs[row], d_nats[row],
                               (Number *)dx + row * width);
        });
    });
}

// Turns pairs of numbers of each head: (first cos - second sin, second cos + first sin), with the sine negated where
// `back`. x is (tokens, heads, width) with tokens `stride` apart, y has no gaps; of a head the first 2 `half_width`
// numbers turn, in pairs (i, i + half_width) or, `interleaved`, (2 i, 2 i + 1), the rest passes. The tables
// (positions, half_width) begin anew after so many tokens.
void rotate(int64_t tokens, int64_t heads, int64_t width, int64_t half_width, int64_t positions, int64_t interleaved,
            int64_t back, int64_t threads, int64_t half, int64_t stride, const void *x, const float *cosines,
            const float *sines, void *y) {
    const int64_t span = rows_of_task(heads * width);
    const float sign = back ? -1.0f : 1.0f;
    with_type(half, [&](auto type) {
        typedef typename decltype(type)::type Number;
        parallel(tasks_of(tokens, span), threads, [&](int64_t task) {
            std::vector<float> from(width + LANES), to(width + LANES);
            for (int64_t token = task * span; token < std::min(tokens, (task + 1) * span); token++) {
                const float *c = cosines + token % positions * half_width, *s = sines + token % positions * half_width;
                for (int64_t head = 0; head < heads; head++) {
                    const Number *x_head = (const Number *)x + token * stride + head * width;
                    Number *y_head = (Number *)y + (token * heads + head) * width;
                    if (!interleaved) {
                        vectors(0, half_width, [&](int64_t i, int64_t lanes) {
                            const Vector one = load(x_head + i, lanes), two = load(x_head + half_width + i, lanes);
                            const Vector cosine = load(c + i, lanes), sine = sign * load(s + i, lanes);
                            store(y_head + i, one * cosine - two * sine, lanes);
                            store(y_head + half_width + i, two * cosine + one * sine, lanes);
                        });
                    } else {
                        for (int64_t i = 0; i < 2 * half_width; i += LANES)
                            store(&from[i], load(x_head + i, 2 * half_width - i), LANES);
                        for (int64_t i = 0; i < half_width; i++) {
                            to[2 * i] = from[2 * i] * c[i] - from[2 * i + 1] * sign * s[i];
                            to[2 * i + 1] = from[2 * i + 1] * c[i] + from[2 * i] * sign * s[i];
                        }
                        for (int64_t i = 0; i < 2 * half_width; i += LANES)
                            store(y_head + i, load(&to[i], LANES), 2 * half_width - i);
                    }
                    if (const int64_t rest = width - 2 * half_width)
                        std::memcpy(y_head + 2 * half_width, x_head + 2 * half_width, rest * sizeof(Number));
                }
            }
        });
    });
}
}
