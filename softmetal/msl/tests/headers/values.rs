//! Types, vectors, conversions, integers, matrices, packing: single lane, exact.

use crate::harness::build;

/// Each source checks itself; the number of a failing line is reported.
fn check(source: &str) {
    build(source, &[]).check();
}

#[test]
fn layout_is_metals() {
    check(
        "#define LAYOUT(T, size, align) static_assert(sizeof(T) == size && alignof(T) == align, #T)
         LAYOUT(half, 2, 2); LAYOUT(bfloat, 2, 2); LAYOUT(bool, 1, 1); LAYOUT(ulong, 8, 8); LAYOUT(size_t, 8, 8);
         LAYOUT(half2, 4, 4); LAYOUT(half3, 8, 8); LAYOUT(half4, 8, 8); LAYOUT(packed_half4, 8, 2);
         LAYOUT(float2, 8, 8); LAYOUT(float3, 16, 16); LAYOUT(float4, 16, 16); LAYOUT(packed_float3, 12, 4);
         LAYOUT(uchar4, 4, 4); LAYOUT(char3, 4, 4); LAYOUT(ulong4, 32, 32); LAYOUT(bool3, 4, 4);
         LAYOUT(float2x2, 16, 8); LAYOUT(float3x3, 48, 16); LAYOUT(half4x4, 32, 8); LAYOUT(float4x4, 64, 16);
         LAYOUT(atomic_uint, 4, 4); LAYOUT(atomic_ulong, 8, 8);
         RUN {
             CHECK(is_same_v<int8_t, char> && is_same_v<int64_t, long> && is_same_v<size_t, ulong>);
         }",
    );
}

#[test]
fn vectors_are_built_from_parts() {
    check(
        "static constexpr const int3 S = {13, 19, 12};
         static_assert(S[0] == 13 && S.y == 19 && S[2] == 12);
         RUN {
             float4 a(float2(1, 2), 3, 4), b(1, float3(2, 3, 4)), c(1, 2, float2(3, 4)), d = {1, 2, 3, 4};
             CHECK(all(a == b) && all(b == c) && all(c == d));
             float4 e = 2, f(2.0f);
             CHECK(all(e == f) && e.w == 2);
             uint3 g = {-1, 7l, short(3)};
             CHECK(g.x == 0xffffffffu && g.y == 7 && g.z == 3);
             CHECK(a.r == 1 && a.g == 2 && a.b == 3 && a.a == 4);
             float3 h(a.get<0, 1, 2>());
             h[1] = 9;
             CHECK(h.x == 1 && h.y == 9 && h.z == 3);
             packed_float3 p = h, q(1, 2, 3), r(float2(1, 2), 3);
             CHECK(p[1] == 9 && all(q == r) && all(float3(p) == h) && q.z == 3);
             const float4 zero = float4();
             CHECK(zero.x == 0 && zero.w == 0);
         }",
    );
}

#[test]
fn swizzles_read_and_write() {
    check(
        "RUN {
             float4 v(1, 2, 3, 4);
             CHECK(all(v.get<3, 2, 1, 0>() == float4(4, 3, 2, 1)));
             CHECK(all(v.get<0, 0>() == float2(1)));
             v.ref<0, 1>() = v.get<1, 0>();
             CHECK(all(v == float4(2, 1, 3, 4)));
             v.ref<2, 3>() *= 2;
             CHECK(all(v == float4(2, 1, 6, 8)));
             v.ref<3, 0>() += float2(1, 10);
             CHECK(all(v == float4(12, 1, 6, 9)));
             v.ref<0, 1, 2>() = 0;
             CHECK(all(v == float4(0, 0, 0, 9)));
             int3 i(8, 9, 10);
             i.ref<0, 2>() >>= 1;
             CHECK(all(i == int3(4, 9, 5)));
         }",
    );
}

#[test]
fn operators_work_by_component() {
    check(
        "RUN {
             float4 a(1, 2, 3, 4);
             CHECK(all(a + a == 2 * a) && all(a - 1 == float4(0, 1, 2, 3)) && all(-a == 0 - a) && all(a / 2 == a * 0.5f));
             uint4 u(1, 2, 3, 4);
             CHECK(all((u << 2 | 1) == uint4(5, 9, 13, 17)) && all(u % 2 == uint4(1, 0, 1, 0)) && all(~u == 0xffffffffu - u));
             CHECK(all(u / 2 == uint4(0, 1, 1, 2)) && all((u ^ u) == 0) && all((u & 1) != 0) == false && any((u & 1) != 0));
             bool4 less = a < 3;
             CHECK(all(less == bool4(true, true, false, false)) && all(!less == (a >= 3)) && any(less && a > 1.5f));
             u += 1; u <<= uint4(1, 2, 3, 4); u++; --u;
             CHECK(all(u == uint4(4, 12, 32, 80)));
             half4 h(1, 2, 3, 4);
             CHECK(is_same_v<decltype(h * 2.5f), half4> && all(h * 2.5f == half4(2.5f, 5, 7.5f, 10)));
             char4 c(100);
             CHECK(all(c + c == char4(char(-56))));
             packed_float2 p(1, 2);
             p += 1;
             CHECK(all(p * 2 == float2(4, 6)) && all(float2(1, 1) + p == float2(3, 4)));
         }",
    );
}

#[test]
fn half_rounds_after_every_operation() {
    check(
        "RUN {
             half a = (half)14.5f, b = (half)14.5f, big = (half)2048.0f, one = 1;
             CHECK(big + one == big);
             half third = one / (half)3.0f;
             CHECK(as_type<ushort>(third) == 0x3555);
             CHECK(float(a * b) == 210.25f);
             half c = (half)1.001f;
             CHECK(float(c * c * c) == float(half(float(half(float(c) * float(c))) * float(c))));
             CHECK(is_same_v<decltype(a * 1.0f), float> && is_same_v<decltype(a * b), half>);
         }",
    );
}

#[test]
fn bfloat_rounds_to_nearest_even_after_every_operation() {
    check(
        "RUN {
             volatile float ties[] = {1.00390625f, 1.01171875f, 1.00390637f, -1.00390625f, 3.4e38f};
             ushort bits[] = {0x3f80, 0x3f82, 0x3f81, 0xbf80, 0x7f80};
             for (int i = 0; i < 5; i++)
                 CHECK(as_type<ushort>((bfloat)ties[i]) == bits[i]);
             volatile float nan = __builtin_nanf(\"\");
             CHECK(isnan((bfloat)nan) && isinf((bfloat)(volatile float)__builtin_inff()));
             bfloat a = (bfloat)1.5f;
             CHECK(softmetal::cast<half>(a) == (half)1.5f && softmetal::cast<bfloat>((half)2.5f) == (bfloat)2.5f);
             CHECK(all(bfloat4(half4(1, 2, 3, 4)) == bfloat4(float4(1, 2, 3, 4))) && all(half2(bfloat2((bfloat)3)) == half2(3)));
             volatile float many = 256.0f, one = 1.0f;
             bfloat x = (bfloat)many, y = (bfloat)one;
             CHECK(x + y + y == x && is_same_v<decltype(x + y), bfloat> && is_same_v<decltype(x + 1.0f), float>);
             float f = a;
             CHECK(f == 1.5f && max(a, (bfloat)2.0f) == 2.0f);
         }",
    );
}

#[test]
fn conversions_and_bits() {
    check(
        "RUN {
             CHECK(all(int4(float4(1.9f, -1.9f, 0, 3)) == int4(1, -1, 0, 3)));
             CHECK(all(uchar4(uint4(257, 2, 3, 4)) == uchar4(1, 2, 3, 4)));
             CHECK(as_type<uint>(1.0f) == 0x3f800000u && as_type<float>(0x40000000u) == 2.0f);
             CHECK(as_type<ushort2>(0x00020001u).y == 2 && as_type<ulong>(uint2(1, 2)) == 0x200000001ul);
             CHECK(all(as_type<half2>(0x40003c00u) == half2(1, 2)) && as_type<long>(as_type<uint2>(-5l)) == -5);
             CHECK(as_type<uchar4>(0x04030201u).z == 3);
             CHECK(softmetal::cast<int>(2.9f) == 2 && softmetal::cast<bool>(3));
             int x = 4;
             softmetal::cast<int&>(x) = 5;
             CHECK(x == 5);
         }",
    );
}

#[test]
fn integer_functions() {
    check(
        "RUN {
             CHECK(clz(1u) == 31 && clz(0u) == 32 && clz(char(1)) == 7 && clz(1ul) == 63 && clz(-1) == 0);
             CHECK(ctz(8u) == 3 && ctz(0u) == 32 && ctz(short(-32768)) == 15 && popcount(char(-1)) == 8 && popcount(~0ul) == 64);
             CHECK(reverse_bits(1u) == 0x80000000u && reverse_bits(uchar(1)) == 0x80 && reverse_bits(ushort(3)) == 0xc000);
             CHECK(rotate(0x80000001u, 1u) == 3 && rotate(uchar(0x81), uchar(4)) == 0x18 && rotate(5u, 0u) == 5 && rotate(5u, 32u) == 5);
             CHECK(mulhi(0xffffffffu, 2u) == 1 && mulhi(-1, 2) == -1 && mulhi(1ul << 63, 4ul) == 2 && mulhi(short(256), short(256)) == 1);
             CHECK(addsat(2000000000, 2000000000) == 2147483647 && addsat(uchar(200), uchar(100)) == 255 && addsat(char(-100), char(-100)) == -128);
             CHECK(subsat(3u, 5u) == 0 && subsat(char(-100), char(100)) == -128 && subsat(~0ul, 1ul) == ~0ul - 1);
             CHECK(hadd(0xffffffffu, 0xfffffffdu) == 0xfffffffeu && rhadd(1, 2) == 2 && hadd(-1, -2) == -2);
             CHECK(madhi(0x80000000u, 4u, 5u) == 7 && madsat(char(100), char(2), char(0)) == 127);
             CHECK(mul24(-3, 5) == -15 && mul24(0x01000003u, 2u) == 6 && mad24(3u, 4u, 5u) == 17);
             CHECK(extract_bits(0xabcdu, 4, 8) == 0xbc && extract_bits(-16, 4, 28) == -1 && extract_bits(5, 0, 0) == 0 && extract_bits(7u, 0, 32) == 7);
             CHECK(insert_bits(0xffffffffu, 0u, 8, 8) == 0xffff00ffu && insert_bits(0u, 0xffu, 28, 4) == 0xf0000000u && insert_bits(1u, 9u, 0, 32) == 9);
             CHECK(abs(-5) == 5 && abs(char(-7)) == 7 && absdiff(-2000000000, 2000000000) == 4000000000u && absdiff(3u, 5u) == 2);
             CHECK(max(3u, 5u) == 5 && min(-1l, 1l) == -1 && clamp(7, 0, 5) == 5 && median3(3, 9, 5) == 5 && max3(1, 7, 3) == 7 && min3(4, 2, 3) == 2);
             CHECK(all(max(int3(-1, 2, 5), 1) == int3(1, 2, 5)) && all(popcount(uint2(3, 7)) == uint2(2, 3)) && all(clamp(int2(-9, 9), -1, 1) == int2(-1, 1)));
             CHECK(all(select(int2(1, 2), int2(3, 4), bool2(true, false)) == int2(3, 2)) && select(1.0f, 2.0f, true) == 2.0f);
         }",
    );
}

#[test]
fn limits_and_traits() {
    check(
        "template <typename T> struct Pair { T a, b; };
         template <typename T> struct _numeric_limits_impl<Pair<T>> {
             static constexpr Pair<T> lowest() { return {numeric_limits<T>::lowest(), 0}; }
         };
         RUN {
             CHECK(numeric_limits<float>::max() == 0x1.fffffep127f && numeric_limits<float>::min() == 0x1p-126f && numeric_limits<half>::max() == 65504.0f);
             CHECK(numeric_limits<int>::lowest() == -2147483647 - 1 && numeric_limits<uchar>::max() == 255 && numeric_limits<char>::min() == -128 && numeric_limits<ulong>::max() == ~0ul);
             CHECK(float(numeric_limits<bfloat>::max()) == 0x1.fep127f && isinf(numeric_limits<half>::infinity()) && isnan(numeric_limits<float>::quiet_NaN()));
             CHECK(numeric_limits<Pair<half>>::lowest().a == -65504.0f);
             CHECK(vec_elements<float3>::value == 3 && vec_elements<uint>::value == 0);
             CHECK(is_floating_point_v<bfloat> && is_arithmetic_v<half> && !is_integral_v<float> && is_convertible_v<int, float>);
             CHECK(is_same_v<conditional_t<true, int, float>, int> && is_same_v<remove_cv_t<const volatile int>, int> && is_same_v<make_unsigned_t<long>, ulong>);
             CHECK(__is_valid_simdgroup_type<half>::value && __is_valid_simdgroup_type<uint4>::value);
             CHECK(!__is_valid_simdgroup_type<bfloat>::value && !__is_valid_simdgroup_type<long>::value && !__is_valid_simdgroup_type<bool>::value);
         }",
    );
}

#[test]
fn matrices_are_kept_by_columns() {
    check(
        "RUN {
             float2x3 m(1, 2, 3, 4, 5, 6);
             CHECK(all(m[0] == float3(1, 2, 3)) && m[1][2] == 6 && all(transpose(m)[2] == float2(3, 6)));
             CHECK(all(m * float2(1, 10) == float3(41, 52, 63)) && all(float3(1, 1, 1) * m == float2(6, 15)));
             float3x3 product = m * transpose(m);
             CHECK(all(product[0] == float3(17, 22, 27)) && product == transpose(product));
             float3x3 identity(1.0f);
             CHECK(identity * product == product && determinant(identity * 2.0f) == 8 && determinant(float2x2(1, 2, 3, 4)) == -2);
             float4x4 p(float4(2, 0, 0, 0), float4(0, 3, 0, 1), float4(0, 0, 4, 0), float4(0, 1, 0, 5));
             CHECK(determinant(p) == 2 * 4 * (3 * 5 - 1) && (p + p == 2 * p) && (p - p == float4x4(0.0f)));
             half4x4 h(p);
             CHECK(h[1][3] == 1 && float4x4(h) == p);
             h[2] *= 2;
             CHECK(h[2][2] == 8);
         }",
    );
}

#[test]
fn geometry() {
    check(
        "RUN {
             float3 x(1, 0, 0), y(0, 1, 0);
             CHECK(all(cross(x, y) == float3(0, 0, 1)) && dot(float4(1, 2, 3, 4), float4(4, 3, 2, 1)) == 20);
             CHECK(length(float2(3, 4)) == 5 && distance(x, y) == sqrt(2.0f) && length_squared(half2(3, 4)) == 25);
             CHECK(all(normalize(float3(0, 0, 7)) == float3(0, 0, 1)) && all(fast::normalize(float2(0, 2)) == float2(0, 1)));
             CHECK(all(reflect(float2(1, -1), float2(0, 1)) == float2(1, 1)) && precise::distance_squared(x, y) == 2);
         }",
    );
}

#[test]
fn packing() {
    check(
        "RUN {
             CHECK(pack_float_to_unorm4x8(float4(0, 1, 0.5f, 2)) == 0xff80ff00u);
             CHECK(pack_float_to_snorm4x8(float4(-1, 1, 0, -2)) == 0x81007f81u);
             CHECK(all(unpack_unorm4x8_to_float(0xff00ff00u) == float4(0, 1, 0, 1)));
             CHECK(all(unpack_snorm2x16_to_float(0x80007fffu) == float2(1, -1)));
             CHECK(all(unpack_unorm2x16_to_half(0xffff0000u) == half2(0, 1)));
             CHECK(pack_half_to_unorm565(half3(1, 0, 1)) == 0xf81f && pack_float_to_unorm10a2(float4(1, 0, 0, 1)) == 0xc00003ffu);
             CHECK(pack_float_to_srgb_unorm4x8(float4(0.5f, 0, 1, 1)) == 0xffff00bcu);
         }",
    );
}

#[test]
fn arrays() {
    check(
        "RUN {
             array<int, 3> a = {1, 2, 3};
             int sum = 0;
             for (int x : a)
                 sum += x;
             CHECK(sum == 6 && a.size() == 3 && a.back() == 3);
             CHECK(make_uniform(4) + 1 == 5);
         }",
    );
}
