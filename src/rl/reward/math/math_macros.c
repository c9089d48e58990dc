#include "rl/reward/math/math_macros.h"

static const ml_macro macros[] = {
    { "left", ML_MACRO_NOTHING, 0 },
    { "right", ML_MACRO_NOTHING, 0 },
    { "big", ML_MACRO_NOTHING, 0 },
    { "Big", ML_MACRO_NOTHING, 0 },
    { "bigl", ML_MACRO_NOTHING, 0 },
    { "bigr", ML_MACRO_NOTHING, 0 },
    { "Bigl", ML_MACRO_NOTHING, 0 },
    { "Bigr", ML_MACRO_NOTHING, 0 },
    { "bigg", ML_MACRO_NOTHING, 0 },
    { "Bigg", ML_MACRO_NOTHING, 0 },
    { "biggl", ML_MACRO_NOTHING, 0 },
    { "biggr", ML_MACRO_NOTHING, 0 },
    { "Biggl", ML_MACRO_NOTHING, 0 },
    { "Biggr", ML_MACRO_NOTHING, 0 },
    { "middle", ML_MACRO_NOTHING, 0 },
    { "displaystyle", ML_MACRO_NOTHING, 0 },
    { "scriptstyle", ML_MACRO_NOTHING, 0 },
    { "scriptscriptstyle", ML_MACRO_NOTHING, 0 },
    { "tiny", ML_MACRO_NOTHING, 0 },
    { "scriptsize", ML_MACRO_NOTHING, 0 },
    { "footnotesize", ML_MACRO_NOTHING, 0 },
    { "small", ML_MACRO_NOTHING, 0 },
    { "normalsize", ML_MACRO_NOTHING, 0 },
    { "large", ML_MACRO_NOTHING, 0 },
    { "Large", ML_MACRO_NOTHING, 0 },
    { "LARGE", ML_MACRO_NOTHING, 0 },
    { "huge", ML_MACRO_NOTHING, 0 },
    { "Huge", ML_MACRO_NOTHING, 0 },
    { "bfseries", ML_MACRO_NOTHING, 0 },
    { "itshape", ML_MACRO_NOTHING, 0 },
    { "sf", ML_MACRO_NOTHING, 0 },
    { "tt", ML_MACRO_NOTHING, 0 },
    { "sc", ML_MACRO_NOTHING, 0 },
    { "mathstrut", ML_MACRO_NOTHING, 0 },
    { "strut", ML_MACRO_NOTHING, 0 },
    { "nolimits", ML_MACRO_NOTHING, 0 },
    { "nobreak", ML_MACRO_NOTHING, 0 },
    { "allowbreak", ML_MACRO_NOTHING, 0 },
    { "relax", ML_MACRO_NOTHING, 0 },
    { "noindent", ML_MACRO_NOTHING, 0 },
    { "centering", ML_MACRO_NOTHING, 0 },
    { "hline", ML_MACRO_NOTHING, 0 },
    { "nonumber", ML_MACRO_NOTHING, 0 },
    { "textstyle", ML_MACRO_NOTHING, 0 },
    { "limits", ML_MACRO_NOTHING, 0 },
    { "bf", ML_MACRO_NOTHING, 0 },
    { "it", ML_MACRO_NOTHING, 0 },
    { "rm", ML_MACRO_NOTHING, 0 },
    { "hfill", ML_MACRO_SPACE, 0 },
    { "quad", ML_MACRO_SPACE, 0 },
    { "thinspace", ML_MACRO_SPACE, 0 },
    { "medspace", ML_MACRO_SPACE, 0 },
    { "thickspace", ML_MACRO_SPACE, 0 },
    { "enspace", ML_MACRO_SPACE, 0 },
    { "space", ML_MACRO_SPACE, 0 },
    { "negthinspace", ML_MACRO_SPACE, 0 },
    { "qquad", ML_MACRO_SPACE, 0 },
    { "mathbf", ML_MACRO_FONT, 0 },
    { "mathit", ML_MACRO_FONT, 0 },
    { "mathnormal", ML_MACRO_FONT, 0 },
    { "mathscr", ML_MACRO_FONT, 0 },
    { "pmb", ML_MACRO_FONT, 0 },
    { "ensuremath", ML_MACRO_FONT, 0 },
    { "mathsf", ML_MACRO_FONT, 0 },
    { "mathtt", ML_MACRO_FONT, 0 },
    { "mathcal", ML_MACRO_FONT, 0 },
    { "mathbb", ML_MACRO_FONT, 0 },
    { "mathfrak", ML_MACRO_FONT, 0 },
    { "boldsymbol", ML_MACRO_FONT, 0 },
    { "bm", ML_MACRO_FONT, 0 },
    { "underline", ML_MACRO_FONT, 0 },
    { "fbox", ML_MACRO_FONT, 0 },
    { "framebox", ML_MACRO_FONT, 0 },
    { "boxed", ML_MACRO_FONT, 0 },
    { "text", ML_MACRO_TEXT, 0 },
    { "mathrm", ML_MACRO_TEXT, 0 },
    { "mbox", ML_MACRO_TEXT, 0 },
    { "hbox", ML_MACRO_TEXT, 0 },
    { "textbf", ML_MACRO_TEXT, 0 },
    { "textit", ML_MACRO_TEXT, 0 },
    { "textsc", ML_MACRO_TEXT, 0 },
    { "textsl", ML_MACRO_TEXT, 0 },
    { "textup", ML_MACRO_TEXT, 0 },
    { "textmd", ML_MACRO_TEXT, 0 },
    { "textnormal", ML_MACRO_TEXT, 0 },
    { "textrm", ML_MACRO_TEXT, 0 },
    { "textsf", ML_MACRO_TEXT, 0 },
    { "texttt", ML_MACRO_TEXT, 0 },
    { "emph", ML_MACRO_TEXT, 0 },
    { "operatorname", ML_MACRO_TEXT, 0 },
    { "label", ML_MACRO_ARGUMENT, 0 },
    { "tag", ML_MACRO_ARGUMENT, 0 },
    { "phantom", ML_MACRO_ARGUMENT, 0 },
    { "hphantom", ML_MACRO_ARGUMENT, 0 },
    { "vphantom", ML_MACRO_ARGUMENT, 0 },
    { "hspace", ML_MACRO_ARGUMENT, 0 },
    { "mspace", ML_MACRO_ARGUMENT, 0 },
    { "vspace", ML_MACRO_ARGUMENT, 0 },
    { "cline", ML_MACRO_ARGUMENT, 0 },
    { "color", ML_MACRO_ARGUMENT, 0 },
    { "textcolor", ML_MACRO_ARGUMENT, 0 },
    { "cdot", ML_MACRO_OP, "*" },
    { "times", ML_MACRO_OP, "*" },
    { "ast", ML_MACRO_OP, "*" },
    { "div", ML_MACRO_OP, "/" },
    { "pm", ML_MACRO_OP, "+-" },
    { "mp", ML_MACRO_OP, "+-" },
    { "le", ML_MACRO_OP, "<=" },
    { "leq", ML_MACRO_OP, "<=" },
    { "leqslant", ML_MACRO_OP, "<=" },
    { "ge", ML_MACRO_OP, ">=" },
    { "geq", ML_MACRO_OP, ">=" },
    { "geqslant", ML_MACRO_OP, ">=" },
    { "lt", ML_MACRO_OP, "<" },
    { "gt", ML_MACRO_OP, ">" },
    { "ne", ML_MACRO_OP, "!=" },
    { "neq", ML_MACRO_OP, "!=" },
    { "in", ML_MACRO_OP, "in" },
    { "cup", ML_MACRO_OP, "cup" },
    { "cr", ML_MACRO_OP, "row" },
    { "newline", ML_MACRO_OP, "row" },
    { "tabularnewline", ML_MACRO_OP, "row" },
    { "to", ML_MACRO_OP, "to" },
    { "rightarrow", ML_MACRO_OP, "to" },
    { "longrightarrow", ML_MACRO_OP, "to" },
    { "gets", ML_MACRO_OP, "gets" },
    { "leftarrow", ML_MACRO_OP, "gets" },
    { "mapsto", ML_MACRO_OP, "mapsto" },
    { "implies", ML_MACRO_OP, "implies" },
    { "Rightarrow", ML_MACRO_OP, "implies" },
    { "Longrightarrow", ML_MACRO_OP, "implies" },
    { "iff", ML_MACRO_OP, "iff" },
    { "Leftrightarrow", ML_MACRO_OP, "iff" },
    { "approx", ML_MACRO_OP, "approx" },
    { "equiv", ML_MACRO_OP, "equiv" },
    { "cong", ML_MACRO_OP, "cong" },
    { "sim", ML_MACRO_OP, "sim" },
    { "propto", ML_MACRO_OP, "propto" },
    { "perp", ML_MACRO_OP, "perp" },
    { "parallel", ML_MACRO_OP, "parallel" },
    { "notin", ML_MACRO_OP, "notin" },
    { "subset", ML_MACRO_OP, "subset" },
    { "subseteq", ML_MACRO_OP, "subseteq" },
    { "supset", ML_MACRO_OP, "supset" },
    { "supseteq", ML_MACRO_OP, "supseteq" },
    { "textdollar", ML_MACRO_OP, "$" },
    { "textcent", ML_MACRO_OP, "¢" },
    { "pounds", ML_MACRO_OP, "£" },
    { "euro", ML_MACRO_OP, "€" },
    { "lvert", ML_MACRO_OP, "|" },
    { "rvert", ML_MACRO_OP, "|" },
    { "vert", ML_MACRO_OP, "|" },
    { "mid", ML_MACRO_OP, "|" },
    { "circ", ML_MACRO_OP, "circ" },
    { "degree", ML_MACRO_OP, "deg" },
    { "colon", ML_MACRO_OP, ":" },
    { "lbrace", ML_MACRO_OPEN, "{" },
    { "rbrace", ML_MACRO_CLOSE, "}" },
    { "langle", ML_MACRO_OPEN, "<" },
    { "rangle", ML_MACRO_CLOSE, ">" },
    { "dfrac", ML_MACRO_RENAME, "frac" },
    { "tfrac", ML_MACRO_RENAME, "frac" },
    { "cfrac", ML_MACRO_RENAME, "frac" },
    { "varnothing", ML_MACRO_RENAME, "emptyset" },
    { "dots", ML_MACRO_RENAME, "ldots" },
    { "cdots", ML_MACRO_RENAME, "ldots" },
    { "dotsc", ML_MACRO_RENAME, "ldots" },
    { "top", ML_MACRO_WORD, "t" },
    { "dbinom", ML_MACRO_RENAME, "binom" },
    { "tbinom", ML_MACRO_RENAME, "binom" },
    { "bar", ML_MACRO_RENAME, "overline" },
    { "varphi", ML_MACRO_RENAME, "phi" },
    { "varepsilon", ML_MACRO_RENAME, "epsilon" },
    { "pi", ML_MACRO_WORD, "pi" },
    { "and", ML_MACRO_OP, "and" },
    { "land", ML_MACRO_OP, "and" },
    { "lor", ML_MACRO_OP, "or" },
};

/* One-character macros, such as \,. */
static const ml_macro signs[] = {
    { ",", ML_MACRO_SPACE, 0 },   { ";", ML_MACRO_SPACE, 0 },
    { ":", ML_MACRO_SPACE, 0 },   { " ", ML_MACRO_SPACE, 0 },
    { "!", ML_MACRO_NOTHING, 0 }, { "$", ML_MACRO_OP, "$" },
    { "(", ML_MACRO_NOTHING, 0 }, { ")", ML_MACRO_NOTHING, 0 },
    { "[", ML_MACRO_NOTHING, 0 }, { "]", ML_MACRO_NOTHING, 0 },
    { "%", ML_MACRO_OP, "%" },    { "{", ML_MACRO_OPEN, "{" },
    { "}", ML_MACRO_CLOSE, "}" }, { "|", ML_MACRO_OP, "|" },
    { "\\", ML_MACRO_OP, "row" }, { "\n", ML_MACRO_SPACE, 0 },
    { "&", ML_MACRO_OP, "&" },    { "_", ML_MACRO_OP, "_" },
};

static const ml_macro *find(const ml_macro *row, size_t n, ml_str name) {
    for (size_t i = 0; i < n; i++)
        if (ml_str_is(name, row[i].name))
            return &row[i];
    return NULL;
}

const ml_macro *ml_macro_find(ml_str name) {
    return find(macros, sizeof macros / sizeof *macros, name);
}

const ml_macro *ml_macro_sign(char c) {
    return find(signs, sizeof signs / sizeof *signs, (ml_str){ &c, 1 });
}

static bool is_one_of(ml_str name, const char *const *list) {
    for (; *list; list++)
        if (ml_str_is(name, *list))
            return true;
    return false;
}

bool ml_math_is_function(ml_str name) {
    static const char *const names[] = { "sin",    "cos",    "tan",    "cot",  "sec",
                                         "csc",    "log",    "ln",     "exp",  "abs",
                                         "arcsin", "arccos", "arctan", "sinh", "cosh",
                                         "tanh",   "lg",     "max",    "min",  "gcd",
                                         "lcm",    "det",    "pow",    "sqrt", 0 };

    return is_one_of(name, names);
}

bool ml_math_is_symbol(ml_str name) {
    static const char *const names[] = {
        "alpha",    "beta", "gamma",   "delta",  "epsilon", "zeta",    "eta",   "theta",
        "vartheta", "iota", "kappa",   "lambda", "mu",      "nu",      "xi",    "rho",
        "sigma",    "tau",  "upsilon", "phi",    "chi",     "psi",     "omega", "infty",
        "ell",      "hbar", "imath",   "jmath",  "aleph",   "partial", "nabla", 0
    };

    return is_one_of(name, names);
}

bool ml_math_is_accent(ml_str name) {
    static const char *const names[] = { "hat",      "widehat",   "vec",   "overrightarrow",
                                         "tilde",    "widetilde", "dot",   "ddot",
                                         "overline", "check",     "breve", "acute",
                                         "grave",    "mathring",  0 };

    return is_one_of(name, names);
}
