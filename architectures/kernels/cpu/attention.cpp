// Softmax attention of whole sequences and its gradient, for CPUs. Of each block of queries only the keys between the
// first and the last that its mask allows are read; scores exist for one block at a time and are computed again for
// the gradient, as in FlashAttention (Dao et al. 2022, arXiv 2205.14135), but the strip of a block is whole.
//
// Numbers are float32 or bfloat16 in memory, as the flag says, and float32 in between. A task is one key/value head of
// one sequence with the query heads that read it (of all sequences, where they share the gradient of a bias), so that
// what is added is added in a fixed order.
#include <cmath>

#include "product.h"

namespace {

constexpr int64_t ROWS = 48;    // of a block of queries: a multiple of the heights of tiles
constexpr int64_t AHEAD = 8;    // rows that are fetched before they are read
constexpr int64_t PANEL = 64;   // keys side by side in the transposed matrix of keys, and of values

// In the order in which Python writes them. Strides are numbers apart.
struct Shape {
    int64_t batch, heads, groups, queries, keys, width, value_width;
    int64_t half, causal;
    int64_t q[3], k[3], v[3], d_out[3];  // strides of sequence, head, token; the last dimension has no gaps
    int64_t mask[2];                     // of sequence, query
    int64_t bias[3];                     // of sequence, head, query
    int64_t bounds;                      // of sequence

    int64_t blocks() const { return (queries + ROWS - 1) / ROWS; }
};

int64_t padded(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

struct Call {
    Shape shape;
    float scale, cap;  // no cap: 0
    const void *q, *k, *v;
    const uint8_t *mask;
    const float *bias;
    const int64_t *bounds;  // the first key and the end, of each block of queries
};

// The memory of a thread, which it keeps; it holds what it last held. It begins with a line of the cache, so that no
// vector lies in two.
float *scratch(int64_t size) {
    static thread_local std::vector<float> kept;
    if ((int64_t)kept.size() < size + 16) kept.resize(size + 16);
    return (float *)(((uintptr_t)kept.data() + 63) & ~(uintptr_t)63);
}

// Copies rows into `width` columns, padded to LANES; what is beyond `count` rows, up to `room`, is zero.
template <class Number>
void read_rows(const Number *from, int64_t stride, int64_t count, int64_t room, int64_t width, float *to) {
    const int64_t across = padded(width, LANES);
    for (int64_t row = 0; row < count; row++)
        vectors(0, width, [&](int64_t i, int64_t lanes) {
            __builtin_prefetch(from + (row + AHEAD) * stride + i);  // rows are too far apart for the processor to guess
            store(to + row * across + i, load(from + row * stride + i, lanes), LANES);
        });
    std::fill(to + count * across, to + room * across, 0.0f);
}

// Turns rows (room, across) into panels of PANEL columns, each (across, PANEL).
void transpose(const float *rows, int64_t room, int64_t across, float *panels) {
    for (int64_t row = 0; row < room; row += LANES) {
        float *column = panels + row / PANEL * across * PANEL + row % PANEL;
        for (int64_t i = 0; i < across; i += LANES)
            transpose_square(rows + row * across + i, across, column + i * PANEL, PANEL);
    }
}

template <class Number>
void write_rows(const float *from, int64_t count, int64_t width, Number *to, int64_t stride) {
    const int64_t across = padded(width, LANES);
    for (int64_t row = 0; row < count; row++)
        vectors(0, width, [&](int64_t i, int64_t lanes) {
            store(to + row * stride + i, load(from + row * across + i, LANES), lanes);
        });
}

// A block of queries of one head, and the keys [first, end) that it may look at; `base` is `first` rounded down to the
// panel, where its strip of scores begins.
struct Block {
    int64_t sequence, head, query, rows, first, end, base;

    int64_t columns() const { return padded(end - base, LANES); }
};

Block block_at(const Call &call, int64_t sequence, int64_t head, int64_t number) {
    const Shape &s = call.shape;
    const int64_t query = number * ROWS, rows = std::min(ROWS, s.queries - query);
    Block block{sequence, head, query, rows, 0, s.keys, 0};
    if (call.bounds) {
        const int64_t *bounds = call.bounds + sequence * s.bounds + 2 * number;
        block.first = bounds[0], block.end = bounds[1];
    }
    if (s.causal) block.end = std::min(block.end, query + rows);
    block.base = block.first / PANEL * PANEL;
    return block;
}

// The scores of one query: what they are made of beside the products.
struct Row {
    const float *bias;
    const uint8_t *mask;
    int64_t base, count;  // the first key of the strip, and how many there are for this query from it on
    float scale, cap;

    Row(const Call &call, const Block &block, int64_t row) : base(block.base), scale(call.scale), cap(call.cap) {
        const Shape &s = call.shape;
        const int64_t query = block.query + row;
        bias = call.bias ? call.bias + block.sequence * s.bias[0] + block.head * s.bias[1] + query * s.bias[2] : nullptr;
        mask = call.mask ? call.mask + block.sequence * s.mask[0] + query * s.mask[1] : nullptr;
        count = (s.causal ? std::min(query + 1, block.end) : block.end) - base;
    }

    // Of `lanes` keys from place `i` of the strip on, minus infinity beyond, given their products; `capped` is
    // tanh(score / c).
    [[gnu::always_inline]] inline Vector scores(Vector products, int64_t i, int64_t lanes, Vector &capped) const {
        Vector score = products * scale;
        if (cap > 0) {
            capped = 1.0f - 2.0f / (1.0f + exponential(score * (2.0f / cap)));
            score = capped * cap;
        }
        if (bias) score += load(bias + base + i, lanes);
        if (mask) {
            const Integers seen = __builtin_convertvector(load(mask + base + i, lanes), Integers);
            score = seen != 0 ? score : Vector{} - INFINITY;
        }
        if (lanes < LANES) score = lane_numbers() < (int32_t)lanes ? score : Vector{} - INFINITY;
        return score;
    }
};

// Turns products into e^(score - log) in place, 0 where nothing is seen; `log` is that of the sum of e^score, or
// infinity if there is none.
float softmax_row(const Row &row, float *strip, int64_t columns) {
    const int64_t seen = padded(row.count, LANES);
    Vector most = Vector{} - INFINITY, sums = {};
    vectors(0, row.count, [&](int64_t i, int64_t lanes) {
        Vector capped = {};
        const Vector score = row.scores(load(strip + i, LANES), i, lanes, capped);
        store(strip + i, score, LANES);
        most = larger(score, most);
    });
    const float top = std::max(largest(most), -1e30f);  // finite, so that e^(-infinity - top) is 0
    for (int64_t i = 0; i < seen; i += LANES) {
        const Vector weight = exponential(load(strip + i, LANES) - top);
        store(strip + i, weight, LANES);
        sums += weight;
    }
    const float sum = total(sums), share = sum == 0 ? 0 : 1 / sum;
    for (int64_t i = 0; i < seen; i += LANES) store(strip + i, load(strip + i, LANES) * share, LANES);
    std::fill(strip + seen, strip + columns, 0.0f);
    return sum == 0 ? INFINITY : top + std::log(sum);
}

template <class Number> const Number *head_of(const void *x, const int64_t *strides, int64_t sequence, int64_t head) {
    return (const Number *)x + sequence * strides[0] + head * strides[1];
}

// The keys and values of one head of one sequence, laid out for products.
struct Sizes {
    int64_t across, value_across;
    int64_t keys, room;  // the room is whole panels, of which `keys` rows are read
    int64_t strip;       // no power of two, so that rows do not share the lines of a cache

    explicit Sizes(const Shape &s)
        : across(padded(s.width, LANES)), value_across(padded(s.value_width, LANES)), keys(padded(s.keys, LANES)),
          room(padded(s.keys, PANEL)), strip(room + 16) {}
};

template <class Number> void forward_head(const Call &call, int64_t sequence, int64_t group, void *out, float *logs) {
    const Shape &s = call.shape;
    const Sizes size(s);
    float *rows = scratch(size.room * (2 * size.across + size.value_across) +
                          ROWS * (size.across + size.value_across + size.strip));
    float *keys = rows + size.room * size.across, *values = keys + size.room * size.across;
    float *query = values + size.room * size.value_across, *mean = query + ROWS * size.across;
    float *strip = mean + ROWS * size.value_across;
    read_rows(head_of<Number>(call.k, s.k, sequence, group), s.k[2], s.keys, size.keys, s.width, rows);
    transpose(rows, size.keys, size.across, keys);
    read_rows(head_of<Number>(call.v, s.v, sequence, group), s.v[2], s.keys, size.keys, s.value_width, values);
    const int64_t shared = s.heads / s.groups;
    for (int64_t head = group * shared; head < (group + 1) * shared; head++) {
        const Number *q = head_of<Number>(call.q, s.q, sequence, head);
        for (int64_t number = 0; number < s.blocks(); number++) {
            const Block block = block_at(call, sequence, head, number);
            const int64_t columns = block.columns();
            read_rows(q + block.query * s.q[2], s.q[2], block.rows, block.rows, s.width, query);
            product(block.rows, columns, s.width, query, {size.across, 1}, keys + block.base * size.across, PANEL,
                    PANEL, size.across * PANEL, strip, size.strip, false);
            for (int64_t row = 0; row < block.rows; row++)
                logs[(sequence * s.heads + head) * s.queries + block.query + row] =
                    softmax_row(Row(call, block, row), strip + row * size.strip, columns);
            if (columns > 0)
                product(block.rows, size.value_across, columns, strip, {size.strip, 1},
                        values + block.base * size.value_across, size.value_across, size.value_across, 0, mean,
                        size.value_across, false);
            else
                std::fill(mean, mean + ROWS * size.value_across, 0.0f);
            write_rows(mean, block.rows, s.value_width,
                       (Number *)out + ((sequence * s.queries + block.query) * s.heads + head) * s.value_width,
                       s.heads * s.value_width);
        }
    }
}

struct Gradients {
    const void *out, *d_out;
    const float *logs;
    void *dq, *dk, *dv;
    float *d_bias;  // null where it is not wanted
};

// With weights p = e^(score - log) and dp = d_out v: ds = p (dp - sum(p dp)), and the sum is that of out d_out.
// Writes p over the products and the slopes of the products over dp.
void slope_row(const Row &row, float log, float along, float *strip, float *slopes, float *d_bias, int64_t columns) {
    vectors(0, row.count, [&](int64_t i, int64_t lanes) {
        Vector capped = {};
        const Vector weight = exponential(row.scores(load(strip + i, LANES), i, lanes, capped) - log);
        Vector slope = weight * (load(slopes + i, LANES) - along);
        store(strip + i, weight, LANES);
        if (d_bias) store(d_bias + i, load(d_bias + i, lanes) + slope, lanes);
        if (row.cap > 0) slope *= 1.0f - capped * capped;
        store(slopes + i, slope * row.scale, LANES);
    });
    const int64_t seen = padded(row.count, LANES);
    std::fill(strip + seen, strip + columns, 0.0f);
    std::fill(slopes + seen, slopes + columns, 0.0f);
}

template <class Number>
void backward_head(const Call &call, const Gradients &g, int64_t sequence, int64_t group) {
    const Shape &s = call.shape;
    const Sizes size(s);
    float *rows = scratch(size.room * 3 * (size.across + size.value_across) +
                          2 * ROWS * (size.across + size.value_across + size.strip));
    float *keys = rows + size.room * size.across, *values = keys + size.room * size.across;
    float *turned = values + size.room * size.value_across;
    float *dk = turned + size.room * size.value_across, *dv = dk + size.room * size.across;
    float *query = dv + size.room * size.value_across, *dq = query + ROWS * size.across;
    float *d_out = dq + ROWS * size.across, *out = d_out + ROWS * size.value_across;
    float *strip = out + ROWS * size.value_across, *slopes = strip + ROWS * size.strip;
    read_rows(head_of<Number>(call.k, s.k, sequence, group), s.k[2], s.keys, size.keys, s.width, rows);
    transpose(rows, size.keys, size.across, keys);
    read_rows(head_of<Number>(call.v, s.v, sequence, group), s.v[2], s.keys, size.keys, s.value_width, values);
    transpose(values, size.keys, size.value_across, turned);
    std::fill(dk, query, 0.0f);
    const int64_t shared = s.heads / s.groups;
    for (int64_t head = group * shared; head < (group + 1) * shared; head++)
        for (int64_t number = 0; number < s.blocks(); number++) {
            const Block block = block_at(call, sequence, head, number);
            const int64_t columns = block.columns(), wide = s.heads * s.value_width;
            read_rows(head_of<Number>(call.q, s.q, sequence, head) + block.query * s.q[2], s.q[2], block.rows,
                      block.rows, s.width, query);
            read_rows(head_of<Number>(g.d_out, s.d_out, sequence, head) + block.query * s.d_out[2], s.d_out[2],
                      block.rows, block.rows, s.value_width, d_out);
            read_rows((const Number *)g.out + ((sequence * s.queries + block.query) * s.heads + head) * s.value_width,
                      wide, block.rows, block.rows, s.value_width, out);
            product(block.rows, columns, s.width, query, {size.across, 1}, keys + block.base * size.across, PANEL,
                    PANEL, size.across * PANEL, strip, size.strip, false);
            product(block.rows, columns, s.value_width, d_out, {size.value_across, 1},
                    turned + block.base * size.value_across, PANEL, PANEL, size.value_across * PANEL, slopes,
                    size.strip, false);
            for (int64_t row = 0; row < block.rows; row++) {
                Vector along = {};
                for (int64_t i = row * size.value_across; i < (row + 1) * size.value_across; i += LANES)
                    along += load(d_out + i, LANES) * load(out + i, LANES);
                const int64_t at = (sequence * s.heads + head) * s.queries + block.query + row;
                const int64_t of = (s.bias[0] ? at : head * s.queries + block.query + row) * s.keys;
                slope_row(Row(call, block, row), g.logs[at], total(along), strip + row * size.strip,
                          slopes + row * size.strip, g.d_bias ? g.d_bias + of + block.base : nullptr, columns);
            }
            if (columns > 0)
                product(block.rows, size.across, columns, slopes, {size.strip, 1}, rows + block.base * size.across,
                        size.across, size.across, 0, dq, size.across, false);
            else
                std::fill(dq, dq + ROWS * size.across, 0.0f);
            product(columns, size.across, block.rows, slopes, {1, size.strip}, query, size.across, size.across, 0,
                    dk + block.base * size.across, size.across, true);
            product(columns, size.value_across, block.rows, strip, {1, size.strip}, d_out, size.value_across,
                    size.value_across, 0, dv + block.base * size.value_across, size.value_across, true);
            write_rows(dq, block.rows, s.width,
                       (Number *)g.dq + ((sequence * s.queries + block.query) * s.heads + head) * s.width,
                       s.heads * s.width);
        }
    write_rows(dk, s.keys, s.width, (Number *)g.dk + (sequence * s.keys * s.groups + group) * s.width,
               s.groups * s.width);
    write_rows(dv, s.keys, s.value_width, (Number *)g.dv + (sequence * s.keys * s.groups + group) * s.value_width,
               s.groups * s.value_width);
}

}  // namespace

extern "C" {

// The first key that a query of each block may look at, and the end of the last: (sequences, blocks, 2) numbers, given
// a mask (sequences, queries, keys) without gaps. Both are 0 where there is none.
void attention_bounds(int64_t sequences, int64_t queries, int64_t keys, int64_t threads, const uint8_t *mask,
                      int64_t *bounds) {
    const int64_t blocks = (queries + ROWS - 1) / ROWS;
    parallel(sequences * blocks, threads, [&](int64_t task) {
        const int64_t query = task % blocks * ROWS, rows = std::min(ROWS, queries - query);
        int64_t first = keys, end = 0;
        for (int64_t row = query; row < query + rows; row++) {
            const uint8_t *seen = mask + (task / blocks * queries + row) * keys;
            first = std::find_if(seen, seen + first, [](uint8_t one) { return one != 0; }) - seen;
            for (int64_t last = keys; last > end; last--)
                if (seen[last - 1]) end = last;
        }
        bounds[2 * task] = std::min(first, end);
        bounds[2 * task + 1] = end;
    });
}

int64_t attention_rows() { return ROWS; }

// out (B, T, H, F), logs (B, H, T).
void attention_forward(const Shape *shape, int64_t threads, double scale, double cap, const void *q, const void *k,
                       const void *v, const uint8_t *mask, const float *bias, const int64_t *bounds, void *out,
                       float *logs) {
    const Call call{*shape, (float)scale, (float)cap, q, k, v, mask, bias, bounds};
    const int64_t groups = shape->groups;
    parallel(shape->batch * groups, threads, [&](int64_t task) {
        if (shape->half)
            forward_head<Half>(call, task / groups, task % groups, out, logs);
        else
            forward_head<float>(call, task / groups, task % groups, out, logs);
    });
}

// dq (B, T, H, E), dk (B, S, G, E), dv (B, S, G, F); d_bias (B or 1, H, T, S) begins at zero, or is null.
void attention_backward(const Shape *shape, int64_t threads, double scale, double cap, const void *q, const void *k,
                        const void *v, const uint8_t *mask, const float *bias, const int64_t *bounds, const void *out,
                        const float *logs, const void *d_out, void *dq, void *dk, void *dv, float *d_bias) {
    const Call call{*shape, (float)scale, (float)cap, q, k, v, mask, bias, bounds};
    const Gradients gradients{out, d_out, logs, dq, dk, dv, d_bias};
    const int64_t groups = shape->groups, joined = d_bias && !shape->bias[0] ? shape->batch : 1;
    parallel(shape->batch / joined * groups, threads, [&](int64_t task) {
        for (int64_t sequence = task / groups * joined; sequence < (task / groups + 1) * joined; sequence++)
            if (shape->half)
                backward_head<Half>(call, gradients, sequence, task % groups);
            else
                backward_head<float>(call, gradients, sequence, task % groups);
    });
}

}  // extern "C"
