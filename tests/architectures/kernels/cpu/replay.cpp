// Repeats recorded calls of the C++ kernels and compares what they write: replay LIBRARY CALLS. record_calls.py writes
// the calls. Prints the largest difference of each kernel, and ends with 1 where one is more than rounding.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

// Integers and addresses go to other registers than floating-point numbers, so their order among each other is free.
#define TEN int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t
typedef void (*Kernel)(TEN, TEN, TEN, TEN, double, double);
#define AT(n) integers[n], integers[n + 1], integers[n + 2], integers[n + 3], integers[n + 4]

static FILE *file;

static bool read(void *to, size_t size) { return size == 0 || fread(to, size, 1, file) == 1; }

template <class Number> static Number next() {
    Number number;
    if (!read(&number, sizeof(number))) std::abort();
    return number;
}

struct Piece {
    char kind;
    std::vector<char> memory, expected;
    std::vector<std::pair<uint64_t, uint32_t>> addresses;
};

static double number(const Piece &piece, const std::vector<char> &memory, size_t i) {
    float value;
    uint32_t bits = 0;
    if (piece.kind == 'f')
        std::memcpy(&value, &memory[4 * i], 4);
    else {
        std::memcpy((char *)&bits + 2, &memory[2 * i], 2);
        std::memcpy(&value, &bits, 4);
    }
    return value;
}

// The largest difference of numbers, in units of the largest that is expected, or of 1 if that is more.
static double difference(const Piece &piece) {
    if (piece.kind == 'x') return piece.addresses.empty() && piece.memory != piece.expected ? INFINITY : 0;
    double largest = 1, off = 0;
    for (size_t i = 0; i < piece.memory.size() / (piece.kind == 'f' ? 4 : 2); i++) {
        const double value = number(piece, piece.memory, i), expected = number(piece, piece.expected, i);
        if (std::isfinite(expected)) largest = std::fmax(largest, std::fabs(expected));
        if (value != expected && !(std::isnan(value) && std::isnan(expected)))
            off = std::isfinite(value - expected) ? std::fmax(off, std::fabs(value - expected)) : INFINITY;
    }
    return off / largest / (piece.kind == 'f' ? 1 : 1000);
}

int main(int, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    file = fopen(argv[2], "rb");
    if (!library || !file) return fprintf(stderr, "%s\n", library ? argv[2] : dlerror()), 2;
    std::map<std::string, std::pair<int, double>> worst;
    for (uint32_t length; read(&length, 4);) {
        std::string name(length, ' ');
        read(&name[0], length);
        int64_t integers[40] = {};
        double doubles[2] = {};
        int count = 0, floats = 0;
        std::vector<std::pair<int, uint32_t>> places;  // of addresses among the arguments
        for (uint32_t left = next<uint32_t>(); left; left--) {
            const char kind = next<char>();
            if (count == 40) return fprintf(stderr, "%s has more than 40 arguments\n", name.c_str()), 2;
            if (kind == 'd')
                doubles[floats++] = next<double>();
            else if (kind == 'i')
                integers[count++] = next<int64_t>();
            else
                places.push_back({count++, next<uint32_t>()});
        }
        std::vector<Piece> pieces(next<uint32_t>());
        for (Piece &piece : pieces) {
            piece.kind = next<char>();
            const uint64_t size = next<uint64_t>();
            piece.memory.resize(size), piece.expected.resize(size);
            read(piece.memory.data(), size), read(piece.expected.data(), size);
            piece.addresses.resize(next<uint32_t>());
            for (auto &address : piece.addresses) address.first = next<uint64_t>(), address.second = next<uint32_t>();
        }
        const auto at = [&](uint32_t piece) { return piece == UINT32_MAX ? nullptr : pieces[piece].memory.data(); };
        for (Piece &piece : pieces)
            for (auto &address : piece.addresses) {
                const char *to = at(address.second);
                std::memcpy(&piece.memory[address.first], &to, sizeof(to));
            }
        for (auto &place : places) integers[place.first] = (int64_t)at(place.second);
        const Kernel kernel = (Kernel)dlsym(library, name.c_str());
        if (!kernel) return fprintf(stderr, "no kernel %s\n", name.c_str()), 2;
        kernel(AT(0), AT(5), AT(10), AT(15), AT(20), AT(25), AT(30), AT(35), doubles[0], doubles[1]);
        auto &[calls, most] = worst[name];
        calls++;
        for (const Piece &piece : pieces) most = std::fmax(most, difference(piece));
    }
    bool wrong = worst.empty();
    for (auto &[name, result] : worst) {
        printf("%s: %d calls, largest difference %.1e\n", name.c_str(), result.first, result.second);
        wrong |= !(result.second < 2e-5);
    }
    return wrong;
}
