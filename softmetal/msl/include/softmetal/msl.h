// Everything that Metal's headers declare, for clang: included in front of a rewritten source.
#pragma once
#pragma clang system_header
#include "abi.h"
#include "runtime.h"
#include "scalar.h"
#include "traits.h"
#include "limits.h"
#include "vec.h"
#include "vec_ops.h"
#include "barrier.h"
#include "math.h"
#include "as_type.h"
#include "integer.h"
#include "common.h"
#include "relational.h"
