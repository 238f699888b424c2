// matrix<T, C, R>: C columns of R rows, kept by columns.
#pragma once
#include "math.h"

namespace metal {

template <typename T, int C, int R>
struct matrix {
    static_assert(softmetal::is_math<T> || softmetal::is_bfloat<T>, "matrices are of half, float or bfloat");
    static_assert(C >= 2 && C <= 4 && R >= 2 && R <= 4, "matrices have 2 to 4 columns and rows");
    typedef vec<T, R> column;
    column columns[C];

    matrix() = default;
    // On the diagonal.
    SM_INLINE explicit constexpr matrix(T s) : columns() {
        for (int c = 0; c < C; c++)
            for (int r = 0; r < R; r++)
                columns[c][r] = c == r ? s : T(0);
    }
    template <typename... A, softmetal::require<sizeof...(A) == C && (is_same_v<A, column> && ...)> = 0>
    SM_INLINE constexpr matrix(SM_IN(A)... a) : columns{a...} {}
    template <typename... A, softmetal::require<sizeof...(A) == C * R && (is_arithmetic_v<A> && ...)> = 0>
    SM_INLINE constexpr matrix(SM_IN(A)... a) : columns() {
        T all[] = {softmetal::cast<T>(a)...};
        for (int c = 0; c < C; c++)
            for (int r = 0; r < R; r++)
                columns[c][r] = all[c * R + r];
    }
    template <typename U, softmetal::require<!is_same_v<T, U>> = 0>
    SM_INLINE explicit constexpr matrix(const matrix<U, C, R>& m) : columns() {
        for (int c = 0; c < C; c++)
            columns[c] = column(m[c]);
    }

    SM_INLINE constexpr column& operator[](size_t c) { return columns[softmetal::checked(c, C)]; }
    SM_INLINE constexpr const column& operator[](size_t c) const { return columns[softmetal::checked(c, C)]; }

    SM_INLINE constexpr matrix& operator+=(const matrix& m) { return *this = *this + m; }
    SM_INLINE constexpr matrix& operator-=(const matrix& m) { return *this = *this - m; }
    SM_INLINE constexpr matrix& operator*=(T s) { return *this = *this * s; }
    SM_INLINE constexpr matrix& operator*=(const matrix<T, C, C>& m) { return *this = *this * m; }

#define SM_MATRIX_BINARY(op) \
    SM_INLINE friend constexpr matrix operator op(matrix a, const matrix& b) { \
        for (int c = 0; c < C; c++) \
            a[c] = a[c] op b[c]; \
        return a; \
    }
    SM_MATRIX_BINARY(+)
    SM_MATRIX_BINARY(-)
    SM_INLINE friend constexpr matrix operator-(matrix a) {
        for (int c = 0; c < C; c++)
            a[c] = -a[c];
        return a;
    }
    SM_INLINE friend constexpr matrix operator*(matrix a, T s) {
        for (int c = 0; c < C; c++)
            a[c] = a[c] * s;
        return a;
    }
    SM_INLINE friend constexpr matrix operator*(T s, const matrix& a) { return a * s; }
    SM_INLINE friend constexpr vec<T, R> operator*(const matrix& m, const vec<T, C>& v) {
        vec<T, R> r = m[0] * v[0];
        for (int c = 1; c < C; c++)
            r += m[c] * v[c];
        return r;
    }
    SM_INLINE friend constexpr vec<T, C> operator*(const vec<T, R>& v, const matrix& m) {
        vec<T, C> r(T(0));
        for (int c = 0; c < C; c++)
            for (int i = 0; i < R; i++)
                r[c] = T(r[c] + v[i] * m[c][i]);
        return r;
    }
    SM_INLINE friend constexpr bool operator==(const matrix& a, const matrix& b) {
        bool same = true;
        for (int c = 0; c < C; c++)
            for (int r = 0; r < R; r++)
                same &= a[c][r] == b[c][r];
        return same;
    }
    SM_INLINE friend constexpr bool operator!=(const matrix& a, const matrix& b) { return !(a == b); }
};

template <typename T, int K, int R, int C>
SM_INLINE constexpr matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
    matrix<T, C, R> r;
    for (int c = 0; c < C; c++)
        r[c] = a * b[c];
    return r;
}

template <typename T, int C, int R>
SM_INLINE constexpr matrix<T, R, C> transpose(const matrix<T, C, R>& m) {
    matrix<T, R, C> t{T(0)};
    for (int c = 0; c < C; c++)
        for (int r = 0; r < R; r++)
            t[r][c] = m[c][r];
    return t;
}

template <typename T>
SM_INLINE constexpr T determinant(const matrix<T, 2, 2>& m) {
    return T(m[0][0] * m[1][1] - m[1][0] * m[0][1]);
}
template <typename T>
SM_INLINE constexpr T determinant(const matrix<T, 3, 3>& m) {
    T d = T(0);
    for (int c = 0; c < 3; c++) {
        int p = (c + 1) % 3, q = (c + 2) % 3;
        d = T(d + m[c][0] * T(m[p][1] * m[q][2] - m[q][1] * m[p][2]));
    }
    return d;
}
template <typename T>
SM_INLINE constexpr T determinant(const matrix<T, 4, 4>& m) {
    T d = T(0);
    for (int c = 0; c < 4; c++) {
        matrix<T, 3, 3> minor{T(0)};
        for (int k = 0; k < 3; k++)
            minor[k] = m[k < c ? k : k + 1].template get<1, 2, 3>();
        T term = T(m[c][0] * determinant(minor));
        d = c % 2 == 0 ? T(d + term) : T(d - term);
    }
    return d;
}

#define SM_MATRIX_NAMES(T, C) \
    typedef matrix<T, C, 2> T##C##x2; \
    typedef matrix<T, C, 3> T##C##x3; \
    typedef matrix<T, C, 4> T##C##x4;
#define SM_FOR_MATRICES(X) \
    X(half, 2) X(half, 3) X(half, 4) X(float, 2) X(float, 3) X(float, 4) X(bfloat, 2) X(bfloat, 3) X(bfloat, 4)
SM_FOR_MATRICES(SM_MATRIX_NAMES)

} // namespace metal

#define SM_MATRIX_GLOBAL_NAMES(T, C) \
    using metal::T##C##x2; \
    using metal::T##C##x3; \
    using metal::T##C##x4;
SM_FOR_MATRICES(SM_MATRIX_GLOBAL_NAMES)

static_assert(sizeof(half4x4) == 32 && alignof(half4x4) == 8 && sizeof(float4x4) == 64 && sizeof(float3x3) == 48);
