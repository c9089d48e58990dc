#include "backend/ops.h"

#define IN(i) (1u << (i))
#define OUT(i) (1u << (i))

const ml_op_info ml_op_infos[ML_OP_COUNT] = {
    [ML_OP_EMBED] = { "embed" },
    [ML_OP_LINEAR] = { "linear", .save_in = IN(0), .grad_in = IN(0) },
    [ML_OP_RMSNORM] = { "rmsnorm", .save_in = IN(0), .in_place = IN(0), .grad_in = IN(0) },
    [ML_OP_ROPE_TABLE] = { "rope-table" },
    [ML_OP_ROPE] = { "rope", .save_in = IN(1), .in_place = IN(0), .grad_in = IN(0) },
    [ML_OP_ATTN] = { "attn", .save_in = IN(0),
                     .save_out = OUT(0) | OUT(1) | OUT(2) | OUT(3),
                     .grad_in = IN(0) | IN(1) | IN(2) },
    [ML_OP_ADD] = { "add", .in_place = IN(0) | IN(1), .grad_in = IN(0) | IN(1) },
    [ML_OP_GLU] = { "glu", .save_in = IN(0) | IN(1), .in_place = IN(0) | IN(1),
                    .grad_in = IN(0) | IN(1) },
    [ML_OP_MOE_ROUTE] = { "moe-route", .save_in = IN(0), .save_out = OUT(1),
                          .grad_in = IN(0) },
    [ML_OP_MOE_GATHER] = { "moe-gather", .save_in = IN(1), .grad_in = IN(0) },
    [ML_OP_MOE_LINEAR] = { "moe-linear", .save_in = IN(0) | IN(1), .grad_in = IN(0) },
    [ML_OP_MOE_COMBINE] = { "moe-combine", .save_in = IN(0) | IN(1) | IN(2),
                            .grad_in = IN(0) | IN(1) },
    [ML_OP_HEAD_LINEAR] = { "head-linear", .save_in = IN(0), .grad_in = IN(0) },
    [ML_OP_JOIN] = { "join", .grad_in = IN(0) | IN(1) },
    [ML_OP_PICK] = { "pick", .grad_in = IN(0) },
    [ML_OP_CONV] = { "conv", .save_in = IN(0), .grad_in = IN(0) },
    [ML_OP_RATES] = { "rates", .save_in = IN(0) | IN(1), .grad_in = IN(0) | IN(1) },
    [ML_OP_RECUR] = { "recur", .save_in = IN(0) | IN(1), .grad_in = IN(0) | IN(1) },
    [ML_OP_ROW_GATE] = { "row-gate", .save_in = IN(0) | IN(1), .in_place = IN(1),
                         .grad_in = IN(0) | IN(1) },
    [ML_OP_SCALE] = { "scale", .in_place = IN(0), .grad_in = IN(0) },
    [ML_OP_MOE_SCALE] = { "moe-scale", .save_in = IN(0) | IN(1), .grad_in = IN(0) },
    [ML_OP_LMHEAD] = { "lmhead", .save_in = IN(0), .save_out = OUT(1) | OUT(2) | OUT(3),
                       .grad_in = IN(0) },
};
