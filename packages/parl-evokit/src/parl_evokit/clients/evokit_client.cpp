// See evokit_client.h. One file, in the order of the header: noise, model, sampling, tokens, log.
#include "evokit_client.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <locale>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Bytes = std::vector<uint8_t>;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Unreadable : Failure { // for now: the cause may be another than the file
    using Failure::Failure;
};

thread_local std::string last_error;

// Runs what may throw; C callers get `failed` and find the reason in evokit_error().
template <class Result, class Work>
Result guarded(Result failed, Work work) {
    try {
        return work();
    } catch (const std::exception &error) {
        last_error = error.what();
        return failed;
    }
}

std::string system_error(const std::string &what) { return what + ": " + std::strerror(errno); }

struct Descriptor {
    int number;
    explicit Descriptor(int opened) : number(opened) {}
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    ~Descriptor() {
        if (number >= 0) close(number);
    }
};

// A file's bytes; relative to a directory that is open, so that two files are those of one directory.
Bytes file_at(int directory, const std::string &name) {
    Descriptor file(openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.number < 0) throw Unreadable(system_error(name + " cannot be opened"));
    Bytes data;
    std::array<uint8_t, 65536> part;
    for (ssize_t got; (got = read(file.number, part.data(), part.size())) != 0;) {
        if (got < 0) throw Unreadable(system_error(name + " cannot be read"));
        data.insert(data.end(), part.begin(), part.begin() + got);
    }
    return data;
}

// The operating system's randomness.
void random_bytes(void *out, size_t count) {
    if (getentropy(out, count) != 0) throw Failure(system_error("the system gives no random bytes"));
}

template <class Number>
Number little(const uint8_t *from) {
    Number number = 0;
    for (size_t i = 0; i < sizeof(Number); i++) number |= static_cast<Number>(from[i]) << (8 * i);
    return number;
}

template <class Number>
void put_little(uint8_t *to, Number number) {
    for (size_t i = 0; i < sizeof(Number); i++) to[i] = static_cast<uint8_t>(number >> (8 * i));
}

// --- SHA-256 (FIPS 180-4) and HMAC (RFC 2104) --------------------------------------------------------------------------

using Digest = std::array<uint8_t, 32>;

class Sha256 {
  public:
    void add(const uint8_t *data, size_t count) {
        total_ += count;
        while (count) {
            size_t take = std::min(count, block_.size() - filled_);
            std::memcpy(block_.data() + filled_, data, take);
            filled_ += take, data += take, count -= take;
            if (filled_ == block_.size()) compress(), filled_ = 0;
        }
    }

    Digest digest() {
        uint64_t bits = total_ * 8;
        const uint8_t one = 0x80, zero = 0;
        add(&one, 1);
        while (filled_ != 56) add(&zero, 1);
        uint8_t length[8];
        for (int i = 0; i < 8; i++) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
        add(length, 8);
        Digest out;
        for (size_t i = 0; i < 32; i++) out[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
        return out;
    }

  private:
    static uint32_t turned(uint32_t x, int by) { return x >> by | x << (32 - by); }

    void compress() {
        static const uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        uint32_t w[64];
        for (int i = 0; i < 16; i++)
            w[i] = static_cast<uint32_t>(block_[4 * i]) << 24 | static_cast<uint32_t>(block_[4 * i + 1]) << 16 |
                   static_cast<uint32_t>(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] +
                   (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
        }
        std::array<uint32_t, 8> s = state_;
        for (int i = 0; i < 64; i++) {
            uint32_t first = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) +
                             ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            uint32_t second = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) +
                              ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
        }
        for (int i = 0; i < 8; i++) state_[i] += s[i];
    }

    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> block_{};
    size_t filled_ = 0;
    uint64_t total_ = 0;
};

Digest sha256(const uint8_t *data, size_t count) {
    Sha256 hash;
    hash.add(data, count);
    return hash.digest();
}

Digest hmac_sha256(const Digest &secret, const uint8_t *data, size_t count) {
    std::array<uint8_t, 64> inner, outer;
    inner.fill(0x36), outer.fill(0x5c);
    for (size_t i = 0; i < secret.size(); i++) inner[i] ^= secret[i], outer[i] ^= secret[i];
    Sha256 first, second;
    first.add(inner.data(), inner.size());
    first.add(data, count);
    Digest middle = first.digest();
    second.add(outer.data(), outer.size());
    second.add(middle.data(), middle.size());
    return second.digest();
}

std::string hexadecimal(const uint8_t *data, size_t count) {
    static const char *digits = "0123456789abcdef";
    std::string text;
    for (size_t i = 0; i < count; i++) text += digits[data[i] >> 4], text += digits[data[i] & 15];
    return text;
}

// --- generators ----------------------------------------------------------------------------------------------------------

__extension__ typedef unsigned __int128 Wide;
constexpr uint64_t key_bits = 62, half_mask = (uint64_t{1} << 31) - 1;
constexpr uint64_t parent_index = uint64_t{1} << 32, control_index = parent_index + 1;
constexpr uint64_t arm_bit = 60; // of an identity, from which on it is the number of the arm; 0 for neither

inline void philox4x64_10(uint64_t counter, uint64_t k0, uint64_t k1, uint64_t out[4]) {
    uint64_t c0 = counter, c1 = 0, c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B97F4A7C15u, k1 += 0xBB67AE8584CAA73Bu) {
        Wide a = static_cast<Wide>(0xD2E7470EE14C6C93u) * c0, b = static_cast<Wide>(0xCA5A826395121157u) * c2;
        c0 = static_cast<uint64_t>(b >> 64) ^ c1 ^ k0, c1 = static_cast<uint64_t>(b);
        c2 = static_cast<uint64_t>(a >> 64) ^ c3 ^ k1, c3 = static_cast<uint64_t>(a);
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

uint64_t splitmix64(uint64_t key, uint64_t n) {
    uint64_t z = key + (n + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

bool is_key(uint64_t key) { return key >> key_bits == 0 && key != 1; }

bool is_sample(const evokit_info &info) {
    return is_key(info.key) && info.identity >> key_bits == 0 && info.model_iter_id >> 31 == 0;
}

}  // namespace

const char *evokit_error(void) { return last_error.c_str(); }

// --- noise ---------------------------------------------------------------------------------------------------------------

struct evokit_noise {
    std::vector<int16_t> quantiles; // all 65536, ascending
    uint64_t seed = 0, table_size = 0, block = 0;
    std::vector<int16_t> table;

    // Units of a stream: sixteen coordinates a block of the generator.
    void computed(uint64_t stream, uint64_t start, size_t count, int16_t *out) const {
        const int16_t *q = quantiles.data();
        uint64_t words[4];
        size_t i = 0;
        while (i < count) {
            uint64_t c = start + i;
            philox4x64_10(c / 16 + 1, seed, stream, words);
            if (c % 16 == 0 && count - i >= 16) {
                for (int word = 0; word < 4; word++)
                    for (int part = 0; part < 4; part++) *out++ = q[words[word] >> (16 * part) & 0xFFFF];
                i += 16;
                continue;
            }
            for (; i < count && (start + i) / 16 == c / 16; i++)
                *out++ = q[words[(start + i) % 16 / 4] >> (16 * ((start + i) % 4)) & 0xFFFF];
        }
    }

    // Calls `use(first coordinate, units)` for stretches of noise of the even key of a pair, in order.
    template <class Use>
    void each(uint64_t pair, uint64_t start, size_t count, Use use) const {
        if (!table_size) {
            int16_t units[256];
            for (size_t done = 0; done < count;) {
                size_t now = std::min<size_t>(count - done, 256 - (start + done) % 16);
                computed(pair, start + done, now, units);
                use(done, now, units);
                done += now;
            }
            return;
        }
        for (size_t done = 0; done < count;) {
            uint64_t c = start + done, offset = c % block;
            size_t now = std::min<uint64_t>(count - done, block - offset);
            use(done, now, table.data() + splitmix64(pair, c / block) % (table_size - block + 1) + offset);
            done += now;
        }
    }

    // theta + noise; the product is rounded before it is added, so the two must not become one instruction.
    void perturb(uint64_t key, uint64_t start, size_t count, const float *steps, float step, const float *theta,
                 float *out) const {
        if (!key) {
            std::memmove(out, theta, count * sizeof(float));
            return;
        }
        each(key >> 1, start, count, [&](size_t done, size_t now, const int16_t *units) {
            float products[256];
            for (size_t low = 0; low < now; low += 256) {
                size_t size = std::min<size_t>(256, now - low), place = done + low;
                if (steps)
                    for (size_t i = 0; i < size; i++)
                        products[i] = static_cast<float>(units[low + i]) * (steps[place + i] * (1.0f / 4096.0f));
                else
                    for (size_t i = 0; i < size; i++) products[i] = static_cast<float>(units[low + i]) * step;
                asm volatile("" : : "r"(products) : "memory");
                if (key & 1)
                    for (size_t i = 0; i < size; i++) out[place + i] = theta[place + i] - products[i];
                else
                    for (size_t i = 0; i < size; i++) out[place + i] = theta[place + i] + products[i];
            }
        });
    }
};

namespace {

std::vector<int16_t> read_quantiles(const char *path) {
    Bytes data = file_at(AT_FDCWD, path);
    Digest digest = sha256(data.data(), data.size());
    if (hexadecimal(digest.data(), digest.size()) != "8cbdab857d380e7e60b7b1cb1b278ff6bc248f9d124cd4b89d32f367c155c9da")
        throw Failure(std::string(path) + " is not the quantiles_v1.i2 of parl-evokit");
    std::vector<int16_t> all(65536);
    for (size_t i = 0; i < 32768; i++) {
        auto upper = static_cast<int16_t>(little<uint16_t>(&data[2 * i]));
        all[32768 + i] = upper, all[32767 - i] = static_cast<int16_t>(-upper);
    }
    return all;
}

std::shared_ptr<evokit_noise> make_noise(std::vector<int16_t> quantiles, uint64_t seed, uint64_t table) {
    if (table && (table < 64 || table > uint64_t{1} << 31)) throw Failure("a table has 64 to 2**31 entries");
    auto noise = std::make_shared<evokit_noise>();
    noise->quantiles = std::move(quantiles);
    noise->seed = seed;
    if (table) {
        noise->table.resize(table);
        noise->computed(0, 0, table, noise->table.data());
        noise->table_size = table;
        for (noise->block = 65536; noise->block > table / 4;) noise->block /= 2;
    }
    return noise;
}

}  // namespace

evokit_noise *evokit_noise_open(const char *quantiles, uint64_t seed, uint64_t table) {
    return guarded<evokit_noise *>(nullptr, [&] {
        return new evokit_noise(*make_noise(read_quantiles(quantiles), seed, table));
    });
}

void evokit_noise_close(evokit_noise *noise) { delete noise; }

void evokit_units(const evokit_noise *noise, uint64_t key, uint64_t start, size_t count, int16_t *out) {
    if (!key) {
        std::memset(out, 0, count * sizeof *out);
        return;
    }
    noise->each(key >> 1, start, count, [&](size_t done, size_t now, const int16_t *units) {
        for (size_t i = 0; i < now; i++) out[done + i] = static_cast<int16_t>(key & 1 ? -units[i] : units[i]);
    });
}

void evokit_perturb(const evokit_noise *noise, uint64_t key, uint64_t start, size_t count, float std, const float *theta,
                    float *out) {
    noise->perturb(key, start, count, nullptr, std * (1.0f / 4096.0f), theta, out);
}

// --- the published model ---------------------------------------------------------------------------------------------------

namespace {

// A flat view of JSON or of prototxt: values by the path of their names, with dots between.
using Settings = std::map<std::string, std::string>;

class Json {
  public:
    explicit Json(const Bytes &data) : text_(data.begin(), data.end()) {
        value("");
        space();
        if (place_ != text_.size()) fail();
    }
    Settings found;

  private:
    [[noreturn]] void fail() const { throw Failure("solver.json is damaged at byte " + std::to_string(place_)); }
    void space() {
        while (place_ < text_.size() && std::strchr(" \t\r\n", text_[place_])) place_++;
    }
    char next() {
        space();
        if (place_ >= text_.size()) fail();
        return text_[place_];
    }
    void take(char wanted) {
        if (next() != wanted) fail();
        place_++;
    }
    std::string string() {
        take('"');
        std::string out;
        for (; place_ < text_.size() && text_[place_] != '"'; place_++) {
            if (text_[place_] != '\\') {
                out += text_[place_];
                continue;
            }
            if (++place_ >= text_.size()) fail();
            switch (text_[place_]) {
                case 'n': out += '\n'; break;
                case 't': out += '\t'; break;
                case 'r': out += '\r'; break;
                case 'b': out += '\b'; break;
                case 'f': out += '\f'; break;
                case 'u': out += '?', place_ += 4; break; // no setting that is read here has such a character
                default: out += text_[place_];
            }
        }
        take('"');
        return out;
    }
    void value(const std::string &path) {
        char first = next();
        if (first == '{' || first == '[') {
            char last = first == '{' ? '}' : ']';
            place_++;
            for (int i = 0; next() != last; i++) {
                if (i) take(',');
                std::string name = first == '{' ? string() : std::to_string(i);
                if (first == '{') take(':');
                value(path.empty() ? name : path + "." + name);
            }
            place_++;
        } else if (first == '"') {
            found[path] = string();
        } else {
            size_t from = place_;
            while (place_ < text_.size() && !std::strchr(",]} \t\r\n", text_[place_])) place_++;
            if (place_ == from) fail();
            found[path] = text_.substr(from, place_ - from);
        }
    }

    std::string text_;
    size_t place_ = 0;
};

// The prototxt that parl-evokit writes: `name: value` and `name { ... }`. Repeated values stand with blanks between.
Settings prototxt(const std::string &text) {
    Settings found;
    std::vector<std::string> path;
    std::string name;
    size_t i = 0;
    auto add = [&](const std::string &value) {
        std::string whole;
        for (const auto &part : path) whole += part + ".";
        auto [place, first] = found.try_emplace(whole + name, value);
        if (!first) place->second += " " + value;
    };
    while (i < text.size()) {
        if (std::strchr(" \t\r\n,;", text[i])) {
            i++;
        } else if (text[i] == '#') {
            while (i < text.size() && text[i] != '\n') i++;
        } else if (text[i] == '{') {
            path.push_back(name), name.clear(), i++;
        } else if (text[i] == '}') {
            if (path.empty()) throw Failure("the configuration in solver.json is damaged");
            path.pop_back(), i++;
        } else if (text[i] == ':') {
            for (i++; i < text.size() && std::strchr(" \t", text[i]);) i++;
            size_t from = i;
            if (i < text.size() && text[i] == '"') {
                for (i++; i < text.size() && text[i] != '"';) i += text[i] == '\\' ? 2 : 1;
                add(text.substr(from + 1, std::min(i, text.size()) - from - 1));
                i++;
            } else {
                while (i < text.size() && !std::strchr(" \t\r\n,;}", text[i])) i++;
                add(text.substr(from, i - from));
            }
            name.clear();
        } else {
            size_t from = i;
            while (i < text.size() && !std::strchr(" \t\r\n:{},;", text[i])) i++;
            name = text.substr(from, i - from);
        }
    }
    return found;
}

struct Array {
    std::string name;
    std::string type; // numpy's, such as "<f4"
    std::vector<size_t> shape;
    Bytes data;
    size_t count() const {
        size_t n = 1;
        for (size_t side : shape) n *= side;
        return n;
    }
};

uint32_t crc32(const uint8_t *data, size_t count, uint32_t crc = 0) {
    static const std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> made{};
        for (uint32_t i = 0; i < 256; i++) {
            made[i] = i;
            for (int bit = 0; bit < 8; bit++) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0xEDB88320u : 0);
        }
        return made;
    }();
    crc = ~crc;
    for (size_t i = 0; i < count; i++) crc = table[(crc ^ data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

// The arrays of an .npz file as numpy's savez writes it: a zip archive without compression.
std::vector<Array> read_npz(const Bytes &file, const std::string &name) {
    auto fail = [&](const std::string &why) -> Failure { return Failure(name + " is damaged: " + why); };
    if (file.size() < 22) throw fail("it is too short");
    size_t end = file.size() - 22;
    while (end && little<uint32_t>(&file[end]) != 0x06054b50) end--;
    if (little<uint32_t>(&file[end]) != 0x06054b50) throw fail("it has no directory");
    size_t place = little<uint32_t>(&file[end + 16]);
    std::vector<Array> arrays;
    for (unsigned left = little<uint16_t>(&file[end + 10]); left; left--) {
        if (place + 46 > file.size() || little<uint32_t>(&file[place]) != 0x02014b50) throw fail("its directory ends early");
        const uint8_t *entry = &file[place];
        size_t size = little<uint32_t>(entry + 24), start = little<uint32_t>(entry + 42);
        size_t name_size = little<uint16_t>(entry + 28);
        place += 46 + name_size + little<uint16_t>(entry + 30) + little<uint16_t>(entry + 32);
        if (place > file.size() || start + 30 > file.size()) throw fail("its directory ends early");
        if (little<uint16_t>(entry + 10) != 0) throw fail("an array is compressed");
        Array array;
        array.name.assign(entry + 46, entry + 46 + name_size);
        if (array.name.size() > 4) array.name.resize(array.name.size() - 4); // .npy
        size_t begin = start + 30 + little<uint16_t>(&file[start + 26]) + little<uint16_t>(&file[start + 28]);
        if (begin + size > file.size() || size < 12) throw fail(array.name + " is cut off");
        const uint8_t *npy = &file[begin];
        if (crc32(npy, size) != little<uint32_t>(entry + 16)) throw fail("the checksum of " + array.name + " does not hold");
        size_t head = npy[6] == 1 ? 10 + little<uint16_t>(npy + 8) : 12 + little<uint32_t>(npy + 8);
        if (std::memcmp(npy, "\x93NUMPY", 6) || head > size) throw fail(array.name + " is not an array");
        std::string text(npy + (npy[6] == 1 ? 10 : 12), npy + head);
        size_t type = text.find("'descr': '"), shape = text.find("'shape': (");
        if (type == std::string::npos || shape == std::string::npos || text.find("'fortran_order': False") == std::string::npos)
            throw fail(array.name + " has a header of another kind");
        array.type = text.substr(type + 10, text.find('\'', type + 10) - type - 10);
        for (size_t at = shape + 10; at < text.size() && text[at] != ')';) {
            if (text[at] < '0' || text[at] > '9') {
                at++;
                continue;
            }
            size_t side = 0;
            for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; at++) side = 10 * side + (text[at] - '0');
            array.shape.push_back(side);
        }
        array.data.assign(npy + head, npy + size);
        arrays.push_back(std::move(array));
    }
    return arrays;
}

template <class Number>
std::vector<Number> numbers(const Array &array, const char *type) {
    if (array.type != type || array.data.size() != array.count() * sizeof(Number))
        throw Failure("array " + array.name + " is of type " + array.type + ", not " + type);
    std::vector<Number> out(array.count());
    std::memcpy(out.data(), array.data.data(), array.data.size()); // both have the low byte first
    return out;
}

struct Part {
    std::string name;
    std::vector<size_t> shape;
    size_t start, count;
};

struct Layer {
    const Part *weights, *bias;
    int activation;
};

using Doubles = std::vector<double>;

double dot(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

// The matrix that noise is multiplied by, in one of three forms; none of them where a model has none.
struct Shape {
    Doubles matrix;              // CMA_ES: [n, n], B times D
    Doubles rates, vectors;      // LM_MA_ES: [k] and [k, n], a factor (1 - rate) I + rate v v^T each
    Doubles deviations, direction; // CR_FM_NES: diag(deviations) (I + factor direction direction^T)
    double factor = 0;

    bool any() const { return !(matrix.empty() && rates.empty() && deviations.empty()); }

    void apply(Doubles &z) const {
        const size_t n = z.size();
        if (!matrix.empty()) {
            Doubles shaped(n);
            for (size_t row = 0; row < n; row++) shaped[row] = dot(&matrix[row * n], z.data(), n);
            z = std::move(shaped);
        }
        for (size_t k = 0; k < rates.size(); k++) {
            const double *v = &vectors[k * n];
            const double along = dot(z.data(), v, n);
            for (size_t i = 0; i < n; i++) z[i] = (1.0 - rates[k]) * z[i] + along * (rates[k] * v[i]);
        }
        if (!deviations.empty()) {
            const double along = dot(z.data(), direction.data(), n);
            for (size_t i = 0; i < n; i++) z[i] = (z[i] + along * (factor * direction[i])) * deviations[i];
        }
    }
};

// The box of all samples, and what noise is added to in its place: coordinates that are mirrored beyond the sides, of which
// the margins next to the sides are bent so that all is smooth there. An infinite side is none.
struct Box {
    Doubles lower, upper, margin;

    // Where a step from x leads.
    double moved(size_t i, double x, double step) const {
        if (step == 0.0) return x;
        const double low = lower[i] - margin[i], high = upper[i] + margin[i];
        double y = x;
        if (x < lower[i] + margin[i]) y = low + 2 * std::sqrt(margin[i] * (x - lower[i]));
        else if (x > upper[i] - margin[i]) y = high - 2 * std::sqrt(margin[i] * (upper[i] - x));
        y = folded(y + step, low, high);
        if (y < lower[i] + margin[i]) y = lower[i] + (y - low) * (y - low) / (4 * margin[i]);
        else if (y > upper[i] - margin[i]) y = upper[i] - (high - y) * (high - y) / (4 * margin[i]);
        return std::min(std::max(y, lower[i]), upper[i]);
    }

  private:
    static double folded(double y, double low, double high) {
        if (y >= low && y <= high) return y;
        if (!std::isfinite(low) || !std::isfinite(high)) return y < low ? 2 * low - y : 2 * high - y;
        const double width = high - low;
        double way = std::fmod(y - low, 2 * width);
        if (way < 0) way += 2 * width;
        return low + (way > width ? 2 * width - way : way);
    }
};

// One model, never changed once it is made.
struct Model {
    uint32_t model_iter_id = 0, fingerprint = 0;
    std::vector<float> parameters;
    std::vector<Part> parts;
    std::vector<float> steps; // standard deviations, one for each parameter; empty where all have `std`
    double std = 0;
    Shape shape;
    std::vector<std::vector<float>> parents; // of the genetic algorithm, whose samples are their children
    Box box;
    std::vector<size_t> integers; // parameters that are whole numbers
    double control_share = 0, holdout_share = 0;
    bool has_trusted = false; // else the trusted model is this one
    std::vector<float> trusted; // its parameters
    bool mirrored = true;
    std::shared_ptr<const evokit_noise> noise;
    std::vector<Layer> layers; // of a built-in perceptron

    const Part *part(const std::string &name) const {
        for (const Part &each : parts)
            if (each.name == name) return &each;
        return nullptr;
    }

    enum Arm : uint64_t { neither, present, held_out }; // as identities have them; samples with noise are of neither
    // The arm that a drawn key leads to; both halves of a pair do.
    Arm arm(uint64_t key) const {
        const uint64_t place = splitmix64(key >> 1, control_index);
        if (!below(place, control_share + holdout_share)) return neither;
        return has_trusted && !below(place, control_share) ? held_out : present;
    }

    void perturb(uint64_t key, std::vector<float> &out) const {
        const bool within = !box.lower.empty();
        if (shape.any() || within) {
            const size_t n = out.size();
            std::vector<int16_t> units(n);
            evokit_units(noise.get(), key, 0, n, units.data());
            Doubles z(units.begin(), units.end());
            shape.apply(z);
            for (size_t i = 0; i < n; i++) {
                const double step = z[i] * ((steps.empty() ? std : steps[i]) / 4096.0);
                out[i] = static_cast<float>(within ? box.moved(i, parameters[i], step) : parameters[i] + step);
            }
        } else {
            const bool child = key && !parents.empty();
            const auto &from = child ? parents[splitmix64(key >> 1, parent_index) % parents.size()] : parameters;
            noise->perturb(key, 0, out.size(), steps.empty() ? nullptr : steps.data(), step(), from.data(), out.data());
        }
        confine(out);
    }

    // The model that was served to a sample without noise.
    void without_noise(uint64_t identity, std::vector<float> &out) const {
        if (identity >> arm_bit == held_out && has_trusted) out = trusted;
        else perturb(0, out);
    }

    float step() const { return static_cast<float>(std) * (1.0f / 4096.0f); }

    void confine(std::vector<float> &out) const {
        for (size_t i = 0; i < box.lower.size(); i++)
            out[i] = static_cast<float>(std::min(std::max<double>(out[i], box.lower[i]), box.upper[i]));
        for (size_t i : integers) {
            out[i] = std::rint(out[i]);
            if (box.lower.empty()) continue;
            const double low = std::ceil(box.lower[i]), high = std::floor(box.upper[i]);
            out[i] = static_cast<float>(std::min(std::max<double>(out[i], low), high));
        }
    }

  private:
    static bool below(uint64_t place, double share) {
        const double limit = std::ceil(share * 18446744073709551616.0);
        return limit >= 18446744073709551616.0 || place < static_cast<uint64_t>(limit);
    }
};

std::string setting(const Settings &settings, const std::string &name, const std::string &otherwise) {
    auto found = settings.find(name);
    return found == settings.end() ? otherwise : found->second;
}

// mlp:4-20-2:linear[:logits][:nobias], or any model of arrays w0, b0, w1, ...
void find_layers(Model &model, const std::string &built_in) {
    int hidden = EVOKIT_TANH, last = EVOKIT_SOFTMAX;
    std::string words = ":" + built_in + ":";
    if (built_in.rfind("mlp:", 0) != 0) return;
    if (words.find(":linear:") != std::string::npos) hidden = EVOKIT_LINEAR;
    if (words.find(":relu:") != std::string::npos) hidden = EVOKIT_RELU;
    if (words.find(":logits:") != std::string::npos) last = EVOKIT_LINEAR;
    for (int i = 0;; i++) {
        const Part *weights = model.part("w" + std::to_string(i));
        if (!weights || weights->shape.size() != 2) break;
        model.layers.push_back({weights, model.part("b" + std::to_string(i)), hidden});
    }
    if (!model.layers.empty()) model.layers.back().activation = last;
}

// A number of the configuration. `strtod` would end at the point where the locale of the process has commas.
double number_of(const std::string &text) {
    if (text == "inf" || text == "-inf") return std::numeric_limits<double>::infinity() * (text[0] == '-' ? -1 : 1);
    std::istringstream digits(text);
    digits.imbue(std::locale::classic());
    double number = 0;
    if (!(digits >> number) || !digits.eof()) throw Failure("the configuration in solver.json has a bad number: " + text);
    return number;
}

Doubles setting_numbers(const Settings &settings, const std::string &name) {
    Doubles found;
    std::istringstream words(setting(settings, name, ""));
    for (std::string word; words >> word;) found.push_back(number_of(word));
    return found;
}

// The arrays of solver.npz by their names.
class State {
  public:
    State(const Bytes &file, const std::string &path) : path_(path) {
        for (Array &array : read_npz(file, path)) arrays_.emplace(array.name, array);
    }

    const Array *find(const std::string &name) const {
        auto found = arrays_.find(name);
        return found == arrays_.end() ? nullptr : &found->second;
    }

    // An array of so many numbers; 0 for any.
    template <class Number>
    std::vector<Number> get(const std::string &name, const char *type, size_t count) const {
        const Array *array = find(name);
        if (!array) throw Failure(path_ + " lacks " + name);
        auto values = numbers<Number>(*array, type);
        if (count && values.size() != count) throw Failure(path_ + " has " + name + " of another model");
        return values;
    }
    Doubles doubles(const std::string &name, size_t count) const { return get<double>(name, "<f8", count); }

  private:
    std::map<std::string, Array> arrays_;
    std::string path_;
};

// What a genetic algorithm's children are made of: each parent from its origin, by its mutations in their order.
void build_parents(Model &model, const State &state) {
    const size_t n = model.parameters.size();
    const auto origins = state.get<float>("origins", "<f4", 0);
    const auto origin_of = state.get<int64_t>("origin_of", "<i8", 0);
    const auto lengths = state.get<int64_t>("chain_lengths", "<i8", origin_of.size());
    const auto chains = state.get<uint64_t>("chains", "<u8", 0);
    size_t first = 0;
    for (size_t k = 0; k < origin_of.size(); k++) {
        const auto origin = static_cast<uint64_t>(origin_of[k]), length = static_cast<uint64_t>(lengths[k]);
        if (origin >= origins.size() / n || length > chains.size() - first)
            throw Failure("the parents in solver.npz are damaged");
        auto begin = origins.begin() + static_cast<std::ptrdiff_t>(origin * n);
        std::vector<float> row(begin, begin + static_cast<std::ptrdiff_t>(n));
        for (size_t i = 0; i < length; i++)
            model.noise->perturb(chains[first + i], 0, n, nullptr, model.step(), row.data(), row.data());
        first += length;
        model.parents.push_back(std::move(row));
    }
    if (model.parents.empty()) throw Failure("solver.npz has no parents");
}

// The distribution of an algorithm's samples; the noise is there already.
void read_distribution(Model &model, const std::string &algorithm, const State &state) {
    const size_t n = model.parameters.size();
    if (algorithm == "BASIC_ES" || algorithm == "ARS") {
        if (state.find("std")) model.std = state.doubles("std", 1)[0];
    } else if (algorithm == "PGPE" || algorithm == "SNES" || algorithm == "CEM") {
        const Doubles wide = state.doubles("std", n);
        model.steps.assign(wide.begin(), wide.end());
    } else if (algorithm == "GA") {
        build_parents(model, state);
    } else if (algorithm == "CMA_ES") {
        const Doubles lengths = state.doubles("lengths", n);
        model.shape.matrix = state.doubles("axes", n * n);
        for (size_t i = 0; i < n * n; i++) model.shape.matrix[i] *= lengths[i % n];
    } else if (algorithm == "SEP_CMA_ES") {
        const double sigma = state.doubles("sigma", 1)[0];
        for (double variance : state.doubles("variances", n))
            model.steps.push_back(static_cast<float>(sigma * std::sqrt(variance)));
    } else if (algorithm == "LM_MA_ES") {
        Doubles vectors = state.doubles("directions", 0);
        const auto steps = static_cast<uint64_t>(state.get<int64_t>("steps", "<i8", 1)[0]);
        const size_t used = static_cast<size_t>(std::min<uint64_t>(steps, vectors.size() / n));
        double rate = 1.0 / static_cast<double>(n);
        for (size_t k = 0; k < used; k++, rate /= 1.5) model.shape.rates.push_back(std::min({0.5, 0.1 * static_cast<double>(n), rate}));
        vectors.resize(used * n);
        model.shape.vectors = std::move(vectors);
    } else if (algorithm == "CR_FM_NES") {
        const Doubles v = state.doubles("direction", n);
        const double norm2 = dot(v.data(), v.data(), n);
        model.shape.deviations = state.doubles("deviations", n);
        for (double each : v) model.shape.direction.push_back(each / std::sqrt(norm2));
        model.shape.factor = std::sqrt(1.0 + norm2) - 1.0;
    } else {
        throw Failure("the model is of " + algorithm + ", which this client does not know");
    }
    if (state.find("sigma")) model.std = state.doubles("sigma", 1)[0];
}

// The float32 number nearest to a side that does not lie beyond it.
double inwards(double side, double inside) {
    const float nearest = static_cast<float>(side);
    const bool beyond = inside > 0 ? nearest < side : nearest > side;
    return beyond ? std::nextafter(nearest, static_cast<float>(inside)) : nearest;
}

// Bounds and whole numbers of the CMA family, and margins by the first standard deviation.
void read_limits(Model &model, const Settings &config, double first_std) {
    const size_t n = model.parameters.size();
    const std::string family = "solver.sampling.cma_sampling.";
    Doubles lower = setting_numbers(config, family + "lower"), upper = setting_numbers(config, family + "upper");
    const double none = std::numeric_limits<double>::infinity();
    for (double place : setting_numbers(config, family + "integers")) {
        if (!(place >= 0 && place < static_cast<double>(n))) throw Failure("the integers in solver.json are of another model");
        model.integers.push_back(static_cast<size_t>(place));
    }
    const auto infinite = [](double side) { return std::isinf(side); };
    if (!std::all_of(lower.begin(), lower.end(), infinite) || !std::all_of(upper.begin(), upper.end(), infinite)) {
        if (lower.size() < 2) lower.assign(n, lower.empty() ? -none : lower[0]);
        if (upper.size() < 2) upper.assign(n, upper.empty() ? none : upper[0]);
        if (lower.size() != n || upper.size() != n) throw Failure("the bounds in solver.json are of another model");
        for (double &side : lower) side = inwards(side, none);
        for (double &side : upper) side = inwards(side, -none);
        Doubles margin(n);
        for (size_t i = 0; i < n; i++) margin[i] = std::min((upper[i] - lower[i]) / 20, first_std / 2);
        for (size_t i : model.integers) margin[i] = 0;
        model.box = {std::move(lower), std::move(upper), std::move(margin)};
    }
}

// Reads a model directory; `noise` is that of the model before, which is used on where its settings are the same.
std::shared_ptr<const Model> read_model(const std::string &path, const std::vector<int16_t> &quantiles,
                                        std::shared_ptr<const evokit_noise> noise) {
    Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.number < 0) throw Failure(system_error(path + " cannot be opened"));
    const Settings summary = Json(file_at(directory.number, "solver.json")).found;
    const std::string format = setting(summary, "format", "");
    if (format != "1" && format != "2") throw Failure(path + "/solver.json is of format " + format + ", not of 1 or 2");
    const Settings config = prototxt(setting(summary, "config", ""));
    auto model = std::make_shared<Model>();
    model->model_iter_id = static_cast<uint32_t>(std::strtoul(setting(summary, "model_iter_id", "").c_str(), nullptr, 10));
    model->fingerprint = static_cast<uint32_t>(std::strtoul(setting(summary, "fingerprint", "").c_str(), nullptr, 10));

    size_t start = 0;
    for (const Array &array : read_npz(file_at(directory.number, "params.npz"), path + "/params.npz")) {
        auto values = numbers<float>(array, "<f4");
        model->parameters.insert(model->parameters.end(), values.begin(), values.end());
        model->parts.push_back({array.name, array.shape, start, values.size()});
        start += values.size();
    }
    Digest digest = sha256(reinterpret_cast<const uint8_t *>(model->parameters.data()), start * sizeof(float));
    if (hexadecimal(digest.data(), digest.size()) != setting(summary, "parameters_sha256", ""))
        throw Failure(path + ": solver.json belongs to other weights than params.npz");

    const std::string algorithm = setting(config, "solver.type", "BASIC_ES"), guard = "solver.guard.";
    const std::string sampling = "solver.sampling.gaussian_sampling.";
    const State state(file_at(directory.number, "solver.npz"), path + "/solver.npz");
    auto share = [&](const char *name) { return number_of(setting(config, guard + name, "0")); };
    const double first_std = number_of(setting(config, sampling + "std", "1"));
    model->std = first_std;
    const bool in_pairs = algorithm != "CMA_ES" && algorithm != "SEP_CMA_ES" && algorithm != "LM_MA_ES" && algorithm != "GA";
    model->mirrored = in_pairs && setting(config, sampling + "mirrored", "true") != "false";
    model->control_share = share("control_share"), model->holdout_share = share("holdout_share");
    if (state.find("guard.parameters")) {
        model->has_trusted = true;
        model->trusted = state.get<float>("guard.parameters", "<f4", start);
    }
    uint64_t seed = std::strtoull(setting(config, sampling + "seed", "18").c_str(), nullptr, 10);
    uint64_t table = std::strtoull(setting(config, sampling + "cache_size", "100000").c_str(), nullptr, 10);
    if (setting(config, sampling + "cached", "false") != "true") table = 0;
    if (!noise || noise->seed != seed || noise->table_size != table) noise = make_noise(quantiles, seed, table);
    model->noise = std::move(noise);
    read_distribution(*model, algorithm, state);
    read_limits(*model, config, first_std);
    if (model->has_trusted) model->confine(model->trusted);
    find_layers(*model, setting(summary, "model", ""));
    return model;
}

// The newest model's directory of a warehouse, and its number; the directory itself where it is a model's.
std::pair<int64_t, std::string> newest_in(const std::string &path) {
    struct stat found;
    if (stat((path + "/solver.json").c_str(), &found) == 0) return {-1, path};
    std::unique_ptr<DIR, int (*)(DIR *)> directory(opendir(path.c_str()), closedir);
    if (!directory) throw Failure(system_error(path + " cannot be opened"));
    std::pair<int64_t, std::string> newest{-1, ""};
    while (const dirent *entry = readdir(directory.get())) {
        std::string name = entry->d_name;
        for (const char *prefix : {"model_iter_id-", "model_dir_"}) {
            size_t length = std::strlen(prefix);
            if (name.compare(0, length, prefix) || name.size() == length ||
                name.find_first_not_of("0123456789", length) != std::string::npos)
                continue;
            int64_t number = std::strtoll(name.c_str() + length, nullptr, 10);
            if (number > newest.first && stat((path + "/" + name + "/solver.json").c_str(), &found) == 0)
                newest = {number, path + "/" + name};
        }
    }
    if (newest.second.empty()) throw Failure(path + " is neither a model's directory with solver.json nor a warehouse of them");
    return newest;
}

// Where models come from; samplers keep it as long as they need it.
struct Source {
    std::string path;
    std::vector<int16_t> quantiles;
    std::mutex refreshing;
    std::shared_ptr<const Model> model; // read and replaced by the atomic functions for shared pointers only

    std::shared_ptr<const Model> newest() const { return std::atomic_load(&model); }

    bool refresh() {
        std::lock_guard<std::mutex> lock(refreshing);
        auto present = newest();
        for (int tries = 0;; tries++) {
            try {
                auto [number, directory] = newest_in(path);
                if (present && number == static_cast<int64_t>(present->model_iter_id)) return false;
                auto read = read_model(directory, quantiles, present ? present->noise : nullptr);
                if (present && read->model_iter_id == present->model_iter_id && read->parameters == present->parameters)
                    return false;
                if (present && read->fingerprint != present->fingerprint)
                    throw Failure(directory + " is a model of another shape, seed or table: open it anew");
                std::atomic_store(&model, read);
                return true;
            } catch (const Failure &) { // its directory may just have been replaced or removed by an update
                if (tries == 2) throw;
            }
        }
    }
};

}  // namespace

struct evokit_source {
    std::shared_ptr<Source> shared;
};

evokit_source *evokit_source_open(const char *path, const char *quantiles) {
    return guarded<evokit_source *>(nullptr, [&] {
        auto source = std::make_shared<Source>();
        source->path = path;
        source->quantiles = read_quantiles(quantiles);
        source->refresh();
        return new evokit_source{std::move(source)};
    });
}

void evokit_source_close(evokit_source *source) { delete source; }

int evokit_refresh(evokit_source *source) {
    return guarded(-1, [&] { return source->shared->refresh() ? 1 : 0; });
}

uint32_t evokit_model_iter_id(const evokit_source *source) { return source->shared->newest()->model_iter_id; }

size_t evokit_parameter_count(const evokit_source *source) { return source->shared->newest()->parameters.size(); }

// --- sampling ----------------------------------------------------------------------------------------------------------------

struct evokit_sampler {
    std::shared_ptr<Source> source;
    std::shared_ptr<const Model> model;
    std::vector<float> buffer;
    std::array<uint64_t, 32> randomness{};
    size_t unused = 0;
    uint64_t waiting = 0; // the odd half of a pair whose even half was served
    uint32_t waiting_for = 0;
    pid_t owner = 0;

    uint64_t draw() {
        if (owner != getpid()) owner = getpid(), unused = 0, waiting = 0; // a fork's child must not repeat keys
        if (waiting && waiting_for == model->model_iter_id) return std::exchange(waiting, 0);
        uint64_t pair = 0;
        while (!pair) {
            if (!unused) random_bytes(randomness.data(), sizeof randomness), unused = randomness.size();
            pair = randomness[--unused] >> (64 - key_bits + 1);
        }
        if (model->mirrored) waiting = 2 * pair + 1, waiting_for = model->model_iter_id;
        return 2 * pair;
    }
};

evokit_sampler *evokit_sampler_new(evokit_source *source) {
    return guarded<evokit_sampler *>(nullptr, [&] {
        auto sampler = std::make_unique<evokit_sampler>();
        sampler->source = source->shared;
        sampler->model = sampler->source->newest();
        sampler->buffer = sampler->model->parameters;
        return sampler.release();
    });
}

void evokit_sampler_free(evokit_sampler *sampler) { delete sampler; }

int evokit_add_noise(evokit_sampler *sampler, evokit_info *info) {
    return guarded(-1, [&] {
        sampler->model = sampler->source->newest();
        const Model &model = *sampler->model;
        const uint64_t key = sampler->draw();
        const Model::Arm arm = model.arm(key);
        if (arm == Model::neither) {
            *info = {key, 0, model.model_iter_id, model.fingerprint};
            model.perturb(key, sampler->buffer);
        } else {
            const uint64_t identity = arm << arm_bit | (key & ((uint64_t{1} << arm_bit) - 1));
            *info = {0, identity, model.model_iter_id, model.fingerprint};
            model.without_noise(identity, sampler->buffer);
        }
        return 0;
    });
}

int evokit_apply_noise(evokit_sampler *sampler, const evokit_info *info) {
    return guarded(-1, [&] {
        auto model = sampler->source->newest();
        if (!is_key(info->key)) throw Failure("this is no key");
        if (info->model_iter_id != model->model_iter_id || (info->fingerprint && info->fingerprint != model->fingerprint))
            throw Failure("the sample is of another model than the newest");
        sampler->model = std::move(model);
        const Model &newest = *sampler->model;
        if (info->key) newest.perturb(info->key, sampler->buffer);
        else newest.without_noise(info->identity, sampler->buffer);
        return 0;
    });
}

const float *evokit_parameters(const evokit_sampler *sampler, size_t *count) {
    if (count) *count = sampler->buffer.size();
    return sampler->buffer.data();
}

const float *evokit_parameter(const evokit_sampler *sampler, const char *name, size_t *count) {
    return guarded<const float *>(nullptr, [&] {
        const Part *part = sampler->model->part(name);
        if (!part) throw Failure(std::string("the model has no parameter ") + name);
        if (count) *count = part->count;
        return sampler->buffer.data() + part->start;
    });
}

void evokit_dense(const float *weights, const float *bias, size_t inputs, size_t outputs, const float *x, int activation,
                  float *y) {
    for (size_t o = 0; o < outputs; o++) y[o] = 0.0f;
    for (size_t i = 0; i < inputs; i++) {
        const float *row = weights + i * outputs;
        for (size_t o = 0; o < outputs; o++) y[o] += x[i] * row[o];
    }
    if (bias)
        for (size_t o = 0; o < outputs; o++) y[o] += bias[o];
    if (activation == EVOKIT_TANH)
        for (size_t o = 0; o < outputs; o++) y[o] = std::tanh(y[o]);
    if (activation == EVOKIT_RELU)
        for (size_t o = 0; o < outputs; o++) y[o] = y[o] > 0.0f ? y[o] : 0.0f;
    if (activation == EVOKIT_SOFTMAX && outputs) {
        float largest = *std::max_element(y, y + outputs), sum = 0.0f;
        for (size_t o = 0; o < outputs; o++) sum += y[o] = std::exp(y[o] - largest);
        for (size_t o = 0; o < outputs; o++) y[o] /= sum;
    }
}

int evokit_predict(const evokit_sampler *sampler, const float *x, size_t inputs, float *y, size_t outputs) {
    return guarded(-1, [&] {
        const auto &layers = sampler->model->layers;
        if (layers.empty()) throw Failure("the model is no built-in perceptron: use evokit_parameter and evokit_dense");
        if (layers.front().weights->shape[0] != inputs || layers.back().weights->shape[1] != outputs)
            throw Failure("the model has " + std::to_string(layers.front().weights->shape[0]) + " inputs and " +
                          std::to_string(layers.back().weights->shape[1]) + " outputs");
        thread_local std::vector<float> rooms[2];
        const float *from = x;
        for (size_t i = 0; i < layers.size(); i++) {
            const Layer &layer = layers[i];
            size_t wide = layer.weights->shape[1];
            std::vector<float> &room = rooms[i % 2];
            if (room.size() < wide) room.resize(wide);
            float *to = i + 1 == layers.size() ? y : room.data();
            evokit_dense(sampler->buffer.data() + layer.weights->start,
                         layer.bias ? sampler->buffer.data() + layer.bias->start : nullptr, layer.weights->shape[0], wide,
                         from, layer.activation, to);
            from = to;
        }
        return 0;
    });
}

// --- tokens ------------------------------------------------------------------------------------------------------------------

namespace {

using Name = std::array<uint8_t, 4>;
constexpr size_t body_size = 26, hash_size = 16, token_bytes = body_size + hash_size;
constexpr char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

double seconds_now() {
    timeval now;
    gettimeofday(&now, nullptr);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_usec) / 1e6;
}

std::string directory_of(const std::string &path) {
    std::unique_ptr<char, void (*)(void *)> whole(realpath(path.c_str(), nullptr), std::free);
    std::string text = whole ? whole.get() : path;
    size_t slash = text.rfind('/');
    return slash == std::string::npos ? "." : slash ? text.substr(0, slash) : "/";
}

bool has_segments(const std::string &directory) {
    std::unique_ptr<DIR, int (*)(DIR *)> open(opendir(directory.c_str()), closedir);
    while (const dirent *entry = open ? readdir(open.get()) : nullptr) {
        std::string name = entry->d_name;
        if (name.size() > 4 && name.compare(name.size() - 4, 4, ".evl") == 0) return true;
    }
    return false;
}

}  // namespace

namespace {

using Secrets = std::vector<std::pair<Name, Digest>>; // the first signs

Secrets parsed(const std::string &text, const std::string &where) {
    Secrets secrets;
    for (size_t i = 0; i < text.size();) {
        if (std::strchr(" ,\t\r\n", text[i])) {
            i++;
            continue;
        }
        size_t from = i;
        while (i < text.size() && !std::strchr(" ,\t\r\n", text[i])) i++;
        std::string word = text.substr(from, i - from);
        if (word.size() != 72 || word.compare(0, 8, "evokit1-") ||
            word.find_first_not_of("0123456789abcdef", 8) != std::string::npos)
            throw Failure(where + ": secret " + std::to_string(secrets.size() + 1) + " is not evokit1- and 64 digits");
        Digest secret;
        for (size_t k = 0; k < 32; k++)
            secret[k] = static_cast<uint8_t>(std::strtoul(word.substr(8 + 2 * k, 2).c_str(), nullptr, 16));
        std::array<uint8_t, 48> named;
        std::memcpy(named.data(), "evokit secret 1", 16); // with the 0 at its end
        std::memcpy(named.data() + 16, secret.data(), 32);
        Digest digest = sha256(named.data(), named.size());
        secrets.push_back({{digest[0], digest[1], digest[2], digest[3]}, secret});
    }
    if (secrets.empty()) throw Failure(where + " holds no secret");
    return secrets;
}

// What changes when a file is rotated, or can be read at last.
using Version = std::array<int64_t, 6>;

Version version_of(const struct stat &found) {
#ifdef __APPLE__
    const timespec &changed = found.st_mtimespec;
#else
    const timespec &changed = found.st_mtim;
#endif
    return {static_cast<int64_t>(found.st_ino), changed.tv_sec, changed.tv_nsec, found.st_size, found.st_mode, found.st_uid};
}

struct stat status_of(const std::string &path) {
    struct stat found;
    if (lstat(path.c_str(), &found) != 0) throw Failure(system_error(path + " cannot be read"));
    return found;
}

Secrets secrets_in(const std::string &path) {
    struct stat found = status_of(path);
    if (S_ISLNK(found.st_mode)) throw Failure(path + " is a symbolic link: give the file itself");
    if (found.st_mode & 077) throw Failure(path + " can be read or written by others: chmod 600");
    if (found.st_uid != geteuid()) throw Failure(path + " belongs to another user");
    for (std::string above, place = directory_of(path); place != above; above = place, place = directory_of(place))
        if (stat((place == "/" ? "/solver.json" : place + "/solver.json").c_str(), &found) == 0 || has_segments(place))
            throw Failure(place + " is the directory of a model or a log: choose one outside it");
    Bytes data = file_at(AT_FDCWD, path);
    return parsed(std::string(data.begin(), data.end()), path);
}

}  // namespace

struct evokit_tokens {
    std::atomic<const Secrets *> present{nullptr}; // threads that serve need no lock for it
    double lifetime_s = 0;
    std::string file, directory; // of the secrets, if they are in one

    ~evokit_tokens() {
        if (Reading *last = reading_.load(); last->owner == getpid()) delete last; // the parent's lock may be held
    }

    void take(Secrets secrets) { take(own_reading(), std::move(secrets)); }

    // Reads the file if it has changed, or if it could not be used and `again` is true; returns whether it did.
    bool refresh(bool again) {
        Reading &reading = own_reading();
        std::lock_guard<std::mutex> lock(reading.running);
        if (file.empty()) return false;
        const Version version = version_of(status_of(file));
        if (version == reading.tried && !(again && reading.failed)) return false;
        reading.tried = version, reading.failed = true; // a file that cannot be used is not read for every forged token
        try {
            take(reading, secrets_in(file));
        } catch (const Unreadable &) {
            reading.tried = {};
            throw;
        }
        reading.failed = false;
        return true;
    }

    static void sign(const Digest &secret, const uint8_t *body, uint8_t *out) {
        uint8_t text[16 + body_size] = "evokit token 1";
        std::memcpy(text + 15, body, body_size);
        Digest digest = hmac_sha256(secret, text, 15 + body_size);
        std::memcpy(out, digest.data(), hash_size);
    }

  private:
    // What a process has read from the file.
    struct Reading {
        const pid_t owner = getpid();
        std::mutex running;
        std::vector<std::unique_ptr<const Secrets>> kept; // also earlier ones, which a thread may be reading
        Version tried{};
        bool failed = false;
    };

    // That of this process: in a fork's child, a thread that the child lacks may be in the middle of the parent's for ever.
    Reading &own_reading() {
        Reading *found = reading_.load(std::memory_order_acquire);
        if (found->owner == getpid()) return *found;
        auto own = std::make_unique<Reading>();
        if (!reading_.compare_exchange_strong(found, own.get(), std::memory_order_acq_rel)) return *found;
        return *own.release();
    }

    void take(Reading &reading, Secrets secrets) {
        reading.kept.push_back(std::make_unique<const Secrets>(std::move(secrets)));
        present.store(reading.kept.back().get(), std::memory_order_release);
    }

    std::atomic<Reading *> reading_{new Reading};
};

evokit_tokens *evokit_tokens_load(const char *path, double lifetime_s) {
    return guarded<evokit_tokens *>(nullptr, [&] {
        if (!(lifetime_s >= 1)) throw Failure("lifetime_s is 1 or more");
        auto tokens = std::make_unique<evokit_tokens>();
        tokens->lifetime_s = lifetime_s;
        if (!path || !*path) path = std::getenv("EVOKIT_SECRET_FILE");
        if (path && *path) {
            std::string given = path;
            size_t slash = given.rfind('/');
            if (S_ISLNK(status_of(given).st_mode)) throw Failure(given + " is a symbolic link: give the file itself");
            tokens->directory = directory_of(given);
            tokens->file = tokens->directory + "/" + (slash == std::string::npos ? given : given.substr(slash + 1));
            tokens->refresh(true);
        } else if (const char *secrets = std::getenv("EVOKIT_SECRET")) {
            tokens->take(parsed(secrets, "EVOKIT_SECRET"));
        } else {
            throw Failure("there is no secret: give a file, or set EVOKIT_SECRET_FILE or EVOKIT_SECRET");
        }
        return tokens.release();
    });
}

int evokit_tokens_refresh(evokit_tokens *tokens) {
    return guarded(-1, [&] { return tokens->refresh(true) ? 1 : 0; });
}

void evokit_tokens_close(evokit_tokens *tokens) { delete tokens; }

int evokit_token_issue_at(const evokit_tokens *tokens, double now, evokit_info *info, char token[EVOKIT_TOKEN_SIZE]) {
    return guarded(-1, [&] {
        if (!is_sample(*info)) throw Failure("this is no sample: its key, identity or model is none");
        if (!info->key && !info->identity) {
            do random_bytes(&info->identity, sizeof info->identity), info->identity >>= 64 - arm_bit;
            while (info->identity < 2);
        }
        const auto &[name, secret] = tokens->present.load(std::memory_order_acquire)->front();
        uint8_t data[token_bytes];
        data[0] = 1, data[1] = info->key ? 0 : 1;
        std::memcpy(data + 2, name.data(), 4);
        put_little<uint32_t>(data + 6, static_cast<uint32_t>(std::min(4294967295.0, now + tokens->lifetime_s)));
        put_little<uint32_t>(data + 10, info->model_iter_id);
        put_little<uint32_t>(data + 14, info->fingerprint);
        put_little<uint64_t>(data + 18, info->key ? info->key : info->identity);
        evokit_tokens::sign(secret, data, data + body_size);
        for (size_t i = 0; i < token_bytes; i += 3) {
            uint32_t three = static_cast<uint32_t>(data[i]) << 16 | static_cast<uint32_t>(data[i + 1]) << 8 | data[i + 2];
            for (int k = 0; k < 4; k++) *token++ = alphabet[three >> (18 - 6 * k) & 63];
        }
        *token = 0;
        return 0;
    });
}

namespace {

// 0 and the sample, or the reason for which the token of these bytes is refused.
int redeemed(const Secrets &secrets, const uint8_t *data, double now, evokit_info *info) {
    for (const auto &[name, secret] : secrets) {
        if (std::memcmp(name.data(), data + 2, 4)) continue;
        uint8_t hash[hash_size], differ = 0;
        evokit_tokens::sign(secret, data, hash);
        for (size_t i = 0; i < hash_size; i++) differ |= hash[i] ^ data[body_size + i]; // in constant time
        if (differ) return EVOKIT_FORGED;
        if (std::floor(now) > little<uint32_t>(data + 6)) return EVOKIT_EXPIRED; // its last second counts
        uint64_t key = little<uint64_t>(data + 18);
        *info = {data[1] ? 0 : key, data[1] ? key : 0, little<uint32_t>(data + 10), little<uint32_t>(data + 14)};
        return 0;
    }
    return EVOKIT_UNKNOWN_SECRET;
}

}  // namespace

int evokit_token_redeem_at(evokit_tokens *tokens, double now, const char *token, evokit_info *info) {
    uint8_t data[token_bytes];
    if (!token || strnlen(token, EVOKIT_TOKEN_SIZE) != EVOKIT_TOKEN_SIZE - 1) return EVOKIT_MALFORMED;
    for (size_t i = 0; i < token_bytes; i += 3, token += 4) {
        uint32_t three = 0;
        for (int k = 0; k < 4; k++) {
            const char *found = std::strchr(alphabet, token[k]);
            if (!found || !*found) return EVOKIT_MALFORMED;
            three = three << 6 | static_cast<uint32_t>(found - alphabet);
        }
        for (int k = 0; k < 3; k++) data[i + static_cast<size_t>(k)] = static_cast<uint8_t>(three >> (16 - 8 * k));
    }
    if (data[0] != 1 || data[1] > 1) return EVOKIT_MALFORMED;
    const Secrets *known = tokens->present.load(std::memory_order_acquire);
    const int result = redeemed(*known, data, now, info);
    if (result != EVOKIT_UNKNOWN_SECRET) return result;
    guarded(false, [&] { return tokens->refresh(false); }); // where the file cannot be read, the secrets that are known stay
    const Secrets *newest = tokens->present.load(std::memory_order_acquire);
    return newest == known ? result : redeemed(*newest, data, now, info);
}

int evokit_token_issue(const evokit_tokens *tokens, evokit_info *info, char token[EVOKIT_TOKEN_SIZE]) {
    return evokit_token_issue_at(tokens, seconds_now(), info, token);
}

int evokit_token_redeem(evokit_tokens *tokens, const char *token, evokit_info *info) {
    return evokit_token_redeem_at(tokens, seconds_now(), token, info);
}

// --- log ---------------------------------------------------------------------------------------------------------------------

namespace {

size_t put_varint(uint8_t *out, uint64_t number) {
    size_t n = 0;
    for (; number > 127; number >>= 7) out[n++] = static_cast<uint8_t>(number | 128);
    out[n++] = static_cast<uint8_t>(number);
    return n;
}

}  // namespace

size_t evokit_record(uint8_t *out, const evokit_info *info, const float *reward, uint64_t time_us, int token) {
    uint8_t message[64];
    size_t n = 0, m = 0;
    message[n++] = 0x08, n += put_varint(message + n, info->key >> 31);
    message[n++] = 0x08, n += put_varint(message + n, info->key & half_mask);
    message[n++] = 0x10, n += put_varint(message + n, info->model_iter_id);
    if (info->fingerprint) message[n++] = 0x1D, put_little<uint32_t>(message + n, info->fingerprint), n += 4;
    if (info->identity) message[n++] = 0x21, put_little<uint64_t>(message + n, info->identity), n += 8;
    out[m++] = 0x0A, out[m++] = static_cast<uint8_t>(n), std::memcpy(out + m, message, n), m += n;
    if (reward) {
        uint32_t bits;
        std::memcpy(&bits, reward, 4);
        out[m++] = 0x15, put_little<uint32_t>(out + m, bits), m += 4;
    }
    if (time_us) out[m++] = 0x18, m += put_varint(out + m, time_us);
    if (token) out[m++] = 0x28, out[m++] = 1;
    return m;
}

size_t evokit_frame(uint8_t *out, const uint8_t *payload, uint16_t length) {
    out[0] = 0xE5, out[1] = 0x4B;
    put_little<uint16_t>(out + 2, length);
    std::memmove(out + 8, payload, length);
    put_little<uint32_t>(out + 4, crc32(out + 8, length, crc32(out + 2, 2)));
    return 8 + static_cast<size_t>(length);
}

namespace {

void make_directories(const std::string &path) {
    for (size_t slash = 0; slash != std::string::npos;) {
        slash = path.find('/', slash + 1);
        std::string upper = path.substr(0, slash);
        if (mkdir(upper.c_str(), 0777) != 0 && errno != EEXIST) throw Failure(system_error(upper + " cannot be made"));
    }
}

}  // namespace

struct evokit_log {
    std::string directory;
    evokit_tokens *tokens;
    unsigned fsync_every, unsynced = 0;
    uint64_t max_bytes = uint64_t{64} << 20, size = 0;
    double max_seconds = 86400, begun = 0, tallied = -1;
    std::array<uint64_t, 6> refused{};
    std::mutex writing;
    int file = -1;
    pid_t owner = 0, counting = getpid(); // the process whose segment this is, and whose refused tokens
    uint32_t fingerprint = 0;

    static double clock() {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
    }

    void sync() {
        if (file >= 0 && owner == getpid()) {
            struct stat found;
            if (fsync(file) != 0 || fstat(file, &found) != 0)
                throw Failure(system_error(directory + " cannot be written to disk"));
            unsynced = 0;
            if (found.st_nlink == 0) {
                give_back();
                throw Failure("a segment of " + directory + " was removed while it was written to, and its records are " +
                              "lost; the next record begins a new one");
            }
        }
        unsynced = 0;
    }

    ~evokit_log() { give_back(); }

    void give_back() {
        if (file >= 0) close(file);
        file = -1;
    }

    void end() {
        struct Ending { // also where the last records cannot be written to disk
            evokit_log &log;
            ~Ending() { log.give_back(); }
        } ending{*this};
        sync();
    }

    void begin(uint32_t wanted) {
        end();
        uint8_t drawn[16];
        random_bytes(drawn, sizeof drawn);
        std::string segment = hexadecimal(drawn, sizeof drawn);
        uint64_t now = static_cast<uint64_t>(seconds_now() * 1e6);
        auto seconds = static_cast<time_t>(now / 1000000);
        char moment[32], host[256] = "";
        tm parts;
        std::strftime(moment, sizeof moment, "%Y%m%d-%H%M%S", gmtime_r(&seconds, &parts));
        gethostname(host, sizeof host - 1);
        make_directories(directory); // it may have been removed since
        std::string path = directory + "/" + moment + "-" + segment.substr(0, 12) + ".evl";
        file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file < 0) throw Failure(system_error(path + " cannot be made"));
        flock(file, LOCK_EX | LOCK_NB); // says that the file is in use; not all file systems have locks
        owner = getpid(), fingerprint = wanted, size = 0, begun = clock();
        uint8_t header[400], frames[832];
        size_t n = 0, length = std::strlen(host);
        header[n++] = 0x08, header[n++] = 1;
        header[n++] = 0x12, header[n++] = static_cast<uint8_t>(segment.size());
        std::memcpy(header + n, segment.data(), segment.size()), n += segment.size();
        header[n++] = 0x1D, put_little<uint32_t>(header + n, fingerprint), n += 4;
        header[n++] = 0x22, n += put_varint(header + n, length), std::memcpy(header + n, host, length), n += length;
        header[n++] = 0x28, n += put_varint(header + n, static_cast<uint64_t>(owner));
        header[n++] = 0x30, n += put_varint(header + n, now);
        size_t one = evokit_frame(frames, header, static_cast<uint16_t>(n));
        std::memcpy(frames + one, frames, one); // twice, so that no single damage makes the segment nameless
        try {
            write_all(frames, 2 * one);
        } catch (const Failure &) { // no record must go where no header is
            give_back();
            unlink(path.c_str());
            throw;
        }
    }

    void write_all(const uint8_t *data, size_t count) {
        ssize_t written = write(file, data, count);
        if (written == static_cast<ssize_t>(count)) {
            size += count;
            return;
        }
        std::string why = written < 0 ? std::strerror(errno) : "the disk is full";
        if (written > 0 && ftruncate(file, static_cast<off_t>(size)) != 0) {
            why += "; a torn frame stays"; // readers skip it
            give_back(); // the file is longer than `size` says, so nothing may be cut off it
        }
        throw Failure(directory + " cannot be written to: " + why + "; the record is not in it");
    }

    void append(evokit_info info, const float *reward, uint64_t time_us, int token) {
        if (!is_sample(info)) throw Failure("this is no sample: its key, identity or model is none");
        bool mine = file >= 0 && owner == getpid(); // after a fork the open segment is the parent's
        bool nameless = !info.fingerprint && fingerprint; // it would be read with that of the header
        if (!mine) give_back();
        if (!mine || nameless || size >= max_bytes || clock() - begun > max_seconds) begin(info.fingerprint);
        if (info.fingerprint == fingerprint) info.fingerprint = 0; // the header has it
        uint8_t record[96], frame[104];
        size_t n = evokit_record(record, &info, reward, time_us, token);
        write_all(frame, evokit_frame(frame, record, static_cast<uint16_t>(n)));
        if (fsync_every && ++unsynced >= fsync_every) sync();
    }

    // The tally of this process; after a fork the parent's is the parent's to write.
    std::array<uint64_t, 6> &own_refused() {
        if (counting != getpid()) refused.fill(0), counting = getpid();
        return refused;
    }

    void tally() {
        if (file < 0 || owner != getpid()) begin(fingerprint);
        uint8_t record[128], frame[136];
        size_t n = 0;
        for (uint64_t reason = 1; reason < refused.size(); reason++) {
            if (!refused[reason]) continue;
            uint8_t part[16];
            size_t m = 0;
            part[m++] = 0x08, m += put_varint(part + m, reason);
            part[m++] = 0x10, m += put_varint(part + m, refused[reason]);
            record[n++] = 0x32, record[n++] = static_cast<uint8_t>(m), std::memcpy(record + n, part, m), n += m;
        }
        write_all(frame, evokit_frame(frame, record, static_cast<uint16_t>(n)));
        refused.fill(0);
        tallied = clock();
    }
};

evokit_log *evokit_log_open(const char *directory, evokit_tokens *tokens, unsigned fsync_every) {
    return guarded<evokit_log *>(nullptr, [&] {
        std::string path = directory;
        make_directories(path);
        struct stat found;
        if (stat(directory, &found) != 0 || !S_ISDIR(found.st_mode))
            throw Failure(path + " is not a directory; a log is a directory of segments");
        if (tokens && !tokens->directory.empty()) {
            std::unique_ptr<char, void (*)(void *)> whole(realpath(directory, nullptr), std::free);
            std::string inside = whole ? whole.get() : path;
            if ((tokens->directory + "/").compare(0, inside.size() + 1, inside + "/") == 0)
                throw Failure("the file of the secrets is in the log's directory, which is copied about: choose another");
        }
        auto log = std::make_unique<evokit_log>();
        log->directory = path, log->tokens = tokens, log->fsync_every = fsync_every;
        return log.release();
    });
}

int evokit_log_close(evokit_log *log) {
    std::unique_ptr<evokit_log> owned(log);
    return guarded(-1, [&] {
        const auto &refused = log->own_refused();
        if (std::any_of(refused.begin(), refused.end(), [](uint64_t count) { return count > 0; })) log->tally();
        log->end();
        return 0;
    });
}

void evokit_log_rotate(evokit_log *log, uint64_t max_bytes, double max_seconds) {
    std::lock_guard<std::mutex> lock(log->writing);
    log->max_bytes = max_bytes, log->max_seconds = max_seconds;
}

int evokit_log_sampled(evokit_log *log, evokit_info *info, char token[EVOKIT_TOKEN_SIZE]) {
    return guarded(-1, [&] {
        char unwanted[EVOKIT_TOKEN_SIZE];
        if (log->tokens && evokit_token_issue(log->tokens, info, token ? token : unwanted) != 0) return -1;
        std::lock_guard<std::mutex> lock(log->writing);
        log->append(*info, nullptr, static_cast<uint64_t>(seconds_now() * 1e6), 0);
        return 0;
    });
}

int evokit_log_reward(evokit_log *log, const evokit_info *info, float reward) {
    return guarded(-1, [&] {
        if (log->tokens) throw Failure("this log takes rewards for tokens only, not for records");
        std::lock_guard<std::mutex> lock(log->writing);
        log->append(*info, &reward, 0, 0);
        return 0;
    });
}

int evokit_log_reward_token(evokit_log *log, const char *token, float reward) {
    return guarded(-1, [&] {
        if (!log->tokens) throw Failure("this log has no tokens: open it with them");
        evokit_info info;
        int reason = evokit_token_redeem(log->tokens, token, &info);
        if (!reason && !std::isfinite(reward)) reason = EVOKIT_BAD_REWARD;
        std::lock_guard<std::mutex> lock(log->writing);
        if (reason) {
            log->own_refused()[static_cast<size_t>(reason)]++;
            if (log->tallied < 0 || evokit_log::clock() - log->tallied >= 1.0) log->tally();
            return reason;
        }
        log->append(info, &reward, static_cast<uint64_t>(seconds_now() * 1e6), 1);
        return 0;
    });
}
