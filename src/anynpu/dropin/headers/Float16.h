/* Numbers of 16 bits for C++ programs that include this name: rknpu2::float16, which goes to and from float on its own.
 *
 * A float becomes the nearest number, a tie the even one; what is too large becomes infinity. */
#ifndef ANYNPU_FLOAT16_H
#define ANYNPU_FLOAT16_H

#include <stdint.h>
#include <string.h>

namespace rknpu2 {

class float16 {
public:
  float16() = default;
  float16(float value) : bits_(from_float(value)) {}
  float16(double value) : bits_(from_float(static_cast<float>(value))) {}
  float16(int value) : bits_(from_float(static_cast<float>(value))) {}

  operator float() const { return to_float(bits_); }

  float16 &operator+=(float16 other) { return *this = float16(to_float(bits_) + to_float(other.bits_)); }
  float16 &operator-=(float16 other) { return *this = float16(to_float(bits_) - to_float(other.bits_)); }
  float16 &operator*=(float16 other) { return *this = float16(to_float(bits_) * to_float(other.bits_)); }
  float16 &operator/=(float16 other) { return *this = float16(to_float(bits_) / to_float(other.bits_)); }

  uint16_t bits_; /* open to all: programs copy arrays of these as bytes */

private:
  static uint32_t bits_of(float value)
  {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }

  static float value_of(uint32_t bits)
  {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }

  static uint16_t from_float(float value)
  {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
      return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* what rounds to 65536 */
      return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* below the smallest normal number: a float addition rounds to steps of 2**-24 */
      return static_cast<uint16_t>(sign | (bits_of(value_of(magnitude) + 0.5f) - 0x3f000000u));
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }

  static float to_float(uint16_t half)
  {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0)
      return value_of(sign | bits_of(static_cast<float>(fraction) * 5.9604644775390625e-8f));
    if (exponent == 31)
      return value_of(sign | 0x7f800000u | fraction << 13);
    return value_of(sign | (exponent + 112u) << 23 | fraction << 13);
  }
};

} /* namespace rknpu2 */

#endif
