// The recurrence of Mamba-2 and its gradient, float32, for CPUs: h_t = decay_t h_(t-1) + delta_t x_t B_t^T and
// y_t = h_t C_t, one decay and one delta for each head.
//
// Shapes: B batch, T length, H heads, P head_dim, G groups of heads that share B and C, N state size. x has rows
// of H P numbers at a stride of its own; B and C share one as well, both groups of N one after another; all else
// is contiguous. The P of a head lie in vectors; some heads of one sequence make a task. What several tasks
// add to (dB, dC) each writes apart, and it is added in a fixed order. The states are kept every CHUNK steps only.
#include "common.h"

namespace {

constexpr int64_t CHUNK = 64, BLOCK = 4, TASK_VECTORS = 256 / LANES;

struct Shape {
    int64_t batch, length, heads, width, groups, state;
    int64_t sharing() const { return heads / groups; }
    int64_t vectors() const { return (width + LANES - 1) / LANES; }  // of a head
    int64_t members() const { return std::max<int64_t>(1, std::min(sharing(), TASK_VECTORS / vectors())); }
    int64_t tasks() const { return (sharing() + members() - 1) / members(); }  // of a group
    int64_t chunks() const { return (length + CHUNK - 1) / CHUNK; }
    int64_t padded() const { return (state + BLOCK - 1) / BLOCK * BLOCK; }
    int64_t state_size() const { return heads * width * state; }
    // Offset in `starts` of the states of a vector (of all heads) at the beginning of a chunk.
    int64_t start(int64_t b, int64_t chunk, int64_t vector) const {
        return ((b * chunks() + chunk) * heads * vectors() + vector) * padded() * LANES;
    }
};

// Rows of B and C of one chunk, padded with zeros to whole blocks of states.
struct Rows {
    std::vector<float> B, C;
    explicit Rows(const Shape &s) : B(CHUNK * s.padded()), C(CHUNK * s.padded()) {}
    void read(const Shape &s, const float *from_B, const float *from_C, int64_t stride, int64_t steps) {
        for (int64_t t = 0; t < steps; t++) {
            std::memcpy(&B[t * s.padded()], from_B + t * stride, s.state * sizeof(float));
            std::memcpy(&C[t * s.padded()], from_C + t * stride, s.state * sizeof(float));
        }
    }
};

// The heads of one task: those of one sequence that share B and C, or some of them.
struct Task {
    int64_t b, group, part, first, heads;
    Task(const Shape &s, int64_t number) {
        part = number % s.tasks(), group = number / s.tasks() % s.groups, b = number / s.tasks() / s.groups;
        first = group * s.sharing() + part * s.members();
        heads = std::min(s.members(), (group + 1) * s.sharing() - first);
    }
};

// One vector of a head of state (P, N): into[n] has the lanes p, p + 1, ...
void gather(const float *from, const Shape &s, int64_t p, int64_t lanes, Vector *into) {
    for (int64_t n = 0; n < s.state; n++)
        for (int64_t lane = 0; lane < lanes; lane++) into[n][lane] = from[(p + lane) * s.state + n];
}

void scatter(const Vector *from, const Shape &s, int64_t p, int64_t lanes, float *into) {
    for (int64_t n = 0; n < s.state; n++)
        for (int64_t lane = 0; lane < lanes; lane++) into[(p + lane) * s.state + n] = from[n][lane];
}

}  // namespace

extern "C" {

// Numbers of `starts`, the states at the beginning of each chunk.
int64_t ssd_starts(int64_t batch, int64_t length, int64_t heads, int64_t width, int64_t groups, int64_t state) {
    const Shape s{batch, length, heads, width, groups, state};
    return batch * s.chunks() * heads * s.vectors() * s.padded() * LANES;
}

// `starts` may be null.
void ssd_forward(int64_t batch, int64_t length, int64_t heads, int64_t width, int64_t groups, int64_t state,
                 int64_t threads, int64_t x_stride, int64_t BC_stride, const float *x, const float *delta,
                 const float *decay, const float *B, const float *C, const float *initial, float *y, float *starts,
                 float *last) {
    const Shape s{batch, length, heads, width, groups, state};
    const int64_t N = s.padded(), vectors = s.vectors();
    parallel(batch * groups * s.tasks(), threads, [&](int64_t number) {
        const Task task(s, number);
        std::vector<Vector> h(task.heads * vectors * N);
        Vector input[CHUNK], output[CHUNK];
        Rows rows(s);
        for (int64_t i = 0; i < task.heads * vectors; i++) {
            const int64_t p = i % vectors * LANES;
            const float *from = initial + task.b * s.state_size() + (task.first + i / vectors) * width * state;
            gather(from, s, p, std::min(LANES, width - p), &h[i * N]);
        }
        for (int64_t chunk = 0; chunk < s.chunks(); chunk++) {
            const int64_t row = task.b * length + chunk * CHUNK;
            const int64_t steps = std::min(CHUNK, length - chunk * CHUNK);
            const int64_t shared = row * BC_stride + task.group * state;
            rows.read(s, B + shared, C + shared, BC_stride, steps);
            for (int64_t i = 0; i < task.heads * vectors; i++) {
                const int64_t head = task.first + i / vectors, p = i % vectors * LANES;
                const int64_t lanes = std::min(LANES, width - p), c = head * width + p;
                if (starts)
                    std::memcpy(starts + s.start(task.b, chunk, task.first * vectors + i), &h[i * N],
                                N * sizeof(Vector));
                for (int64_t t = 0; t < steps; t++) {
                    input[t] = delta[(row + t) * heads + head] * load(x + (row + t) * x_stride + c, lanes);
                    output[t] = Vector{};
                }
                for (int64_t n = 0; n < N; n += BLOCK) {
                    Vector block[BLOCK];
                    for (int64_t j = 0; j < BLOCK; j++) block[j] = h[i * N + n + j];
                    for (int64_t t = 0; t < steps; t++) {
                        const float left = decay[(row + t) * heads + head];
                        for (int64_t j = 0; j < BLOCK; j++) {
                            block[j] = left * block[j] + input[t] * rows.B[t * N + n + j];
                            output[t] += block[j] * rows.C[t * N + n + j];
                        }
                    }
                    for (int64_t j = 0; j < BLOCK; j++) h[i * N + n + j] = block[j];
                }
                for (int64_t t = 0; t < steps; t++) store(y + (row + t) * heads * width + c, output[t], lanes);
            }
        }
        for (int64_t i = 0; i < task.heads * vectors; i++) {
            const int64_t p = i % vectors * LANES;
            float *into = last + task.b * s.state_size() + (task.first + i / vectors) * width * state;
            scatter(&h[i * N], s, p, std::min(LANES, width - p), into);
        }
    });
}
}

namespace {

// One vector of channels through one chunk: what the blocks of states read and add to.
struct Chunk {
    Vector x[CHUNK], input[CHUNK], dy[CHUNK], d_input[CHUNK], d_decay[CHUNK];
    float decay[CHUNK], delta[CHUNK];
};

// One block of states of one vector of channels, forwards and back again. `g` is the gradient at the state after
// the chunk times what is left of it; dB and dC are added to.
void block_backward(Chunk &k, int64_t steps, int64_t N, const float *B, const float *C, const Vector *start,
                    Vector *g, Vector *dB, Vector *dC) {
    Vector state[CHUNK + 1][BLOCK];
    for (int64_t j = 0; j < BLOCK; j++) state[0][j] = start[j];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t j = 0; j < BLOCK; j++)
            state[t + 1][j] = k.decay[t] * state[t][j] + k.input[t] * B[t * N + j];
    for (int64_t t = steps - 1; t >= 0; t--) {
        const Vector dy = k.dy[t], input = k.input[t];
        Vector d_input = k.d_input[t], d_decay = k.d_decay[t];
        for (int64_t j = 0; j < BLOCK; j++) {
            const Vector h = g[j] + dy * C[t * N + j];  // the gradient at this state
            dC[t * BLOCK + j] += dy * state[t + 1][j];
            dB[t * BLOCK + j] += h * input;
            d_input += h * B[t * N + j];
            d_decay += h * state[t][j];
            g[j] = k.decay[t] * h;
        }
        k.d_input[t] = d_input, k.d_decay[t] = d_decay;
    }
}

}  // namespace

extern "C" void ssd_backward(int64_t batch, int64_t length, int64_t heads, int64_t width, int64_t groups,
                             int64_t state, int64_t threads, int64_t x_stride, int64_t BC_stride, const float *x,
                             const float *delta, const float *decay, const float *B, const float *C,
                             const float *starts, const float *dy, const float *d_last, float *dx, float *d_delta,
                             float *d_decay, float *dB, float *dC, float *d_initial) {
    const Shape s{batch, length, heads, width, groups, state};
    const int64_t N = s.padded(), vectors = s.vectors();
    std::vector<float> parts_B(s.tasks() * batch * length * groups * state), parts_C(parts_B.size());
    parallel(batch * groups * s.tasks(), threads, [&](int64_t number) {
        const Task task(s, number);
        std::vector<Vector> g(task.heads * vectors * N);
        std::vector<Chunk> chunks(task.heads * vectors);
        Vector slope_B[CHUNK * BLOCK], slope_C[CHUNK * BLOCK];
        Rows rows(s);
        for (int64_t i = 0; i < task.heads * vectors; i++) {
            const int64_t p = i % vectors * LANES;
            const float *from = d_last + task.b * s.state_size() + (task.first + i / vectors) * width * state;
            gather(from, s, p, std::min(LANES, width - p), &g[i * N]);
        }
        for (int64_t chunk = s.chunks() - 1; chunk >= 0; chunk--) {
            const int64_t row = task.b * length + chunk * CHUNK;
            const int64_t steps = std::min(CHUNK, length - chunk * CHUNK);
            const int64_t shared = row * BC_stride + task.group * state;
            rows.read(s, B + shared, C + shared, BC_stride, steps);
            for (int64_t i = 0; i < task.heads * vectors; i++) {
                const int64_t head = task.first + i / vectors, p = i % vectors * LANES;
                const int64_t lanes = std::min(LANES, width - p), c = head * width + p;
                Chunk &k = chunks[i];
                for (int64_t t = 0; t < steps; t++) {
                    k.decay[t] = decay[(row + t) * heads + head], k.delta[t] = delta[(row + t) * heads + head];
                    k.x[t] = load(x + (row + t) * x_stride + c, lanes);
                    k.dy[t] = load(dy + (row + t) * heads * width + c, lanes);
                    k.input[t] = k.delta[t] * k.x[t];
                    k.d_input[t] = k.d_decay[t] = Vector{};
                }
            }
            for (int64_t n = 0; n < N; n += BLOCK) {
                std::fill(slope_B, slope_B + CHUNK * BLOCK, Vector{});
                std::fill(slope_C, slope_C + CHUNK * BLOCK, Vector{});
                for (int64_t i = 0; i < task.heads * vectors; i++) {
                    const float *start = starts + s.start(task.b, chunk, task.first * vectors + i) + n * LANES;
                    Vector begun[BLOCK];
                    std::memcpy(begun, start, sizeof(begun));
                    block_backward(chunks[i], steps, N, &rows.B[n], &rows.C[n], begun, &g[i * N + n], slope_B,
                                   slope_C);
                }
                for (int64_t t = 0; t < steps; t++)
                    for (int64_t j = 0; j < BLOCK && n + j < state; j++) {
                        const int64_t at =
                            ((task.part * batch * length + row + t) * groups + task.group) * state + n + j;
                        parts_B[at] = total(slope_B[t * BLOCK + j]), parts_C[at] = total(slope_C[t * BLOCK + j]);
                    }
            }
            for (int64_t i = 0; i < task.heads * vectors; i += vectors)
                for (int64_t t = 0; t < steps; t++) {
                    const int64_t head = task.first + i / vectors;
                    float at_decay = 0, at_delta = 0;
                    for (int64_t v = 0; v < vectors; v++) {
                        const Chunk &k = chunks[i + v];
                        const int64_t p = v * LANES;
                        store(dx + ((row + t) * heads + head) * width + p, k.delta[t] * k.d_input[t],
                              std::min(LANES, width - p));
                        at_decay += total(k.d_decay[t]), at_delta += total(k.d_input[t] * k.x[t]);
                    }
                    d_decay[(row + t) * heads + head] = at_decay, d_delta[(row + t) * heads + head] = at_delta;
                }
        }
        for (int64_t i = 0; i < task.heads * vectors; i++) {
            const int64_t p = i % vectors * LANES;
            float *into = d_initial + task.b * s.state_size() + (task.first + i / vectors) * width * state;
            scatter(&g[i * N], s, p, std::min(LANES, width - p), into);
        }
    });
    const int64_t all = batch * length * groups * state, piece = (all + threads - 1) / threads;
    parallel(threads, threads, [&](int64_t i) {
        const int64_t from = i * piece, size = std::max<int64_t>(0, std::min(piece, all - from));
        for (int64_t at = from; at < from + size; at++) {
            float sum_B = 0, sum_C = 0;
            for (int64_t part = 0; part < s.tasks(); part++)
                sum_B += parts_B[part * all + at], sum_C += parts_C[part * all + at];
            dB[at] = sum_B, dC[at] = sum_C;
        }
    });
}
