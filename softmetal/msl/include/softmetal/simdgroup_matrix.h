// <metal_simdgroup_matrix>: an 8x8 matrix whose 64 elements are spread over the 32 lanes, two neighbours of a row in each.
#pragma once
#include "gather.h"

namespace softmetal {

// Lane l holds (row, column) and (row, column + 1).
SM_INLINE constexpr u32 matrix_row(u32 lane) { return (lane / 4 & 4) + lane / 2 % 4; }
SM_INLINE constexpr u32 matrix_column(u32 lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
SM_INLINE constexpr u32 matrix_lane(u32 row, u32 column) {
    return (row & 4) * 4 + (column & 4) * 2 + row % 4 * 2 + column / 2 % 2;
}

// The calling lane, once all 32 have come.
SM_RENDEZVOUS inline u32 matrix_rendezvous(Here here) {
    return Lanes<u8, simd_width>(0, gather_kind::matrix, 0, here).own;
}

struct MatrixOperands {
    float a[2];
    float b[2];
};
struct MatrixElements {
    float first;
    float second;
};

// This lane's two elements of a * b + c, summed in float.
SM_RENDEZVOUS inline MatrixElements matrix_multiply(MatrixOperands operands, float c0, float c1, Here here) {
    Lanes<MatrixOperands, simd_width> lanes(operands, gather_kind::matrix, 0, here);
    u32 row = matrix_row(lanes.own), column = matrix_column(lanes.own);
    for (u32 k = 0; k < 8; k++) {
        float a = lanes[matrix_lane(row, k)].a[k % 2];
        const MatrixOperands b = lanes[matrix_lane(k, column)];
        c0 = __builtin_fmaf(a, b.b[0], c0);
        c1 = __builtin_fmaf(a, b.b[1], c1);
    }
    return {c0, c1};
}

} // namespace softmetal

namespace metal {

template <typename T, int Cols = 8, int Rows = Cols>
struct simdgroup_matrix {
    static_assert(Cols == 8 && Rows == 8, "simdgroup_matrix is 8x8");
    static_assert(softmetal::is_math<T> || softmetal::is_bfloat<T>, "simdgroup_matrix is of half, float or bfloat");
    typedef T value_type;
    typedef vec<T, 2> storage_type;

    simdgroup_matrix() = default;
    // On the diagonal.
    SM_INLINE explicit simdgroup_matrix(T diagonal, softmetal::Here here = {}) {
        uint lane = softmetal::matrix_rendezvous(here);
        uint row = softmetal::matrix_row(lane), column = softmetal::matrix_column(lane);
        elements = storage_type(row == column ? diagonal : T(0), row == column + 1 ? diagonal : T(0));
    }

    SM_INLINE SM_THREAD storage_type& thread_elements() SM_THREAD { return elements; }
    SM_INLINE const SM_THREAD storage_type& thread_elements() const SM_THREAD { return elements; }

private:
    storage_type elements;
};

typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int Cols, int Rows = Cols>
SM_INLINE simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, Cols, Rows> m;
    m.thread_elements() = vec<T, 2>(value, value);
    return m;
}

// The offset of this lane's element (row, column).
#define SM_MATRIX_OFFSET(next) \
    (transpose_matrix ? (matrix_origin.y + column + next) * elements_per_row + matrix_origin.x + row \
                      : (matrix_origin.y + row) * elements_per_row + matrix_origin.x + column + next)

template <typename T, typename P, softmetal::require<is_same_v<remove_cv_t<P>, T>> = 0>
SM_INLINE void simdgroup_load(SM_THREAD simdgroup_matrix<T, 8, 8>& d, SM_ANY P* src, ulong elements_per_row = 8, ulong2 matrix_origin = 0,
    bool transpose_matrix = false, softmetal::Here here = {}) {
    uint lane = softmetal::matrix_rendezvous(here);
    ulong row = softmetal::matrix_row(lane), column = softmetal::matrix_column(lane);
    d.thread_elements() = vec<T, 2>(src[SM_MATRIX_OFFSET(0)], src[SM_MATRIX_OFFSET(1)]);
}

template <typename T, typename P, softmetal::require<is_same_v<P, T>> = 0>
SM_INLINE void simdgroup_store(SM_IN(simdgroup_matrix<T, 8, 8>) a, SM_ANY P* dst, ulong elements_per_row = 8, ulong2 matrix_origin = 0,
    bool transpose_matrix = false, softmetal::Here here = {}) {
    uint lane = softmetal::matrix_rendezvous(here);
    ulong row = softmetal::matrix_row(lane), column = softmetal::matrix_column(lane);
    dst[SM_MATRIX_OFFSET(0)] = a.thread_elements().x;
    dst[SM_MATRIX_OFFSET(1)] = a.thread_elements().y;
}

template <typename D, typename A, typename B, typename C>
SM_INLINE void simdgroup_multiply_accumulate(SM_THREAD simdgroup_matrix<D, 8, 8>& d, SM_IN(simdgroup_matrix<A, 8, 8>) a,
    SM_IN(simdgroup_matrix<B, 8, 8>) b, SM_IN(simdgroup_matrix<C, 8, 8>) c, softmetal::Here here = {}) {
    vec<A, 2> x = a.thread_elements();
    vec<B, 2> y = b.thread_elements();
    vec<C, 2> z = c.thread_elements();
    softmetal::MatrixElements r = softmetal::matrix_multiply(
        {{float(x.x), float(x.y)}, {float(y.x), float(y.y)}}, float(z.x), float(z.y), here);
    d.thread_elements() = vec<D, 2>(D(r.first), D(r.second));
}

template <typename D, typename A, typename B>
SM_INLINE void simdgroup_multiply(SM_THREAD simdgroup_matrix<D, 8, 8>& d, SM_IN(simdgroup_matrix<A, 8, 8>) a,
    SM_IN(simdgroup_matrix<B, 8, 8>) b, softmetal::Here here = {}) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8>(0.0f), here);
}

// `operator*` can't take a site by default: the product is made at a place of its own.
template <typename T>
SM_INLINE simdgroup_matrix<T, 8, 8> operator*(SM_IN(simdgroup_matrix<T, 8, 8>) a, SM_IN(simdgroup_matrix<T, 8, 8>) b) {
    simdgroup_matrix<T, 8, 8> d;
    simdgroup_multiply(d, a, b);
    return d;
}

} // namespace metal
