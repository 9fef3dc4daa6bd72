// Products of small matrices in float32, for kernels that compute something between two of them.
#pragma once
#include "common.h"

// A tile of the result is `height` rows of `width` vectors in registers, with those of b and one of a beside.
constexpr int64_t WIDEST = REGISTERS >= 32 ? 4 : 2;
constexpr int HEIGHTS[] = {0, REGISTERS >= 32 ? 12 : 8, REGISTERS >= 32 ? 12 : 6, 8, 6};  // by width
constexpr int64_t DEPTH = 64;  // rows of b that stay in the first cache while all rows of a pass

// Where the numbers of a matrix are: `row` and `column` numbers apart.
struct Strides {
    int64_t row, column;
};

template <int height, int width>
static void product_tile(int64_t depth, const float *a, Strides at, const float *b, int64_t b_row, float *c,
                         int64_t c_row, bool add) {
    Vector sums[height][width];
#pragma GCC unroll 16
    for (int i = 0; i < height; i++)
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) sums[i][j] = add ? load(c + i * c_row + j * LANES) : Vector{};
    for (int64_t p = 0; p < depth; p++) {
        Vector right[width];
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) right[j] = load(b + p * b_row + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < height; i++) {
            const Vector left = a[i * at.row + p * at.column] - Vector{};  // in all lanes
#pragma GCC unroll 4
            for (int j = 0; j < width; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < height; i++)
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) store(c + i * c_row + j * LANES, sums[i][j]);
}

// All rows of `width` vectors: as many tiles of full height as there are, then lower ones.
template <int height, int width>
static void product_rows(int64_t rows, int64_t depth, const float *a, Strides at, const float *b, int64_t b_row,
                         float *c, int64_t c_row, bool add) {
    for (; rows >= height; rows -= height, a += height * at.row, c += height * c_row)
        product_tile<height, width>(depth, a, at, b, b_row, c, c_row, add);
    if constexpr (height > 1)
        if (rows) product_rows<height / 2, width>(rows, depth, a, at, b, b_row, c, c_row, add);
}

template <int width>
static void product_width(int64_t vectors, int64_t rows, int64_t depth, const float *a, Strides at, const float *b,
                          int64_t b_row, float *c, int64_t c_row, bool add) {
    if (vectors == width) return product_rows<HEIGHTS[width], width>(rows, depth, a, at, b, b_row, c, c_row, add);
    if constexpr (width > 1) product_width<width - 1>(vectors, rows, depth, a, at, b, b_row, c, c_row, add);
}

// c = a b, or c += a b where `add`: `rows` by `columns`, a multiple of LANES, over `depth`. Of b, columns are one
// number apart within a panel of `panel` columns, a multiple of LANES; panels are `b_panel` numbers apart.
static inline void product(int64_t rows, int64_t columns, int64_t depth, const float *a, Strides at, const float *b,
                           int64_t b_row, int64_t panel, int64_t b_panel, float *c, int64_t c_row, bool add) {
    for (int64_t from = 0; from < columns; from += panel, b += b_panel) {
        const int64_t end = std::min(columns - from, panel);
        for (int64_t column = 0; column < end; column += WIDEST * LANES)
            for (int64_t p = 0; p < depth; p += DEPTH)
                product_width<WIDEST>(std::min(WIDEST, (end - column) / LANES), rows, std::min(DEPTH, depth - p),
                                      a + p * at.column, at, b + p * b_row + column, b_row, c + from + column, c_row,
                                      add || p);
    }
}

// to[i][j] = from[j][i], a square of LANES.
static inline void transpose_square(const float *from, int64_t from_row, float *to, int64_t to_row) {
    Vector rows[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) rows[i] = load(from + i * from_row);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) store(to + i * to_row, rows[i]);
}
