/* Sessions over a generator with a script: tokens, branches, samples, access. */
#include <stdio.h>
#include <string.h>

#include "tests/support/serve_fixture.h"
#include "tests/support/test.h"

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ANSWER(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define ASK(messages) "{\"messages\": [" messages "]}"
/* Messages end with the token that ends answers, and a line feed. */
#define LINES                                                                              \
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"                                 \
    "{% for t in m.tool_calls or [] %}({{ t.function.name }}){% endfor %}<|im_end|>\n"     \
    "{% endfor %}{% if tools %}{% endif %}"                                                \
    "{% if add_generation_prompt %}[assistant]{% endif %}"

static ml_serve_fixture f;
static const char *body;
static char session[200];

static int ask(const char *method, const char *path, const char *json) {
    char whole[400];

    snprintf(whole, sizeof whole, "%s%s", session, path);
    return ml_serve_ask(&f, method, whole, NULL, json, &body);
}

static void start(const char *template, int kind, ml_message_matcher matcher) {
    ml_serve_fixture_init(&f);
    f.script = "hey";
    f.template = template;
    f.opts.tools = ML_TOOLS_QWEN;
    f.opts.sessions =
        (ml_session_opts){ .on = true, .kind = (ml_session_kind)kind, .matcher = matcher };
    ml_serve_fixture_start(&f);
    session[0] = 0;
    CHECK(ask("POST", "/sessions", "{\"seed\": 5}") == 200);
    CHECK(sscanf(body, "{\"session_id\": \"%32[0-9a-f]\"}", session) == 1);
    memmove(session + 10, session, 33);
    memcpy(session, "/sessions/", 10);
}

static void stop(void) {
    ml_serve_fixture_stop(&f);
}

static void chat(const char *json) {
    int got = ask("POST", "/v1/chat/completions", json);
    if (got != 200)
        ml_test_fail(__FILE__, __LINE__, "%s: status %d: %s", json, got, body);
}

static int count(const char *words) {
    int n = 0;

    for (const char *at = body; (at = strstr(at, words)); at++)
        n++;
    return n;
}

/* --- tokens --------------------------------------------------------------------------- */

/* The token that ends an answer is followed by what the template writes after it. */
static void continues(void) {
    start(LINES, ML_SESSION_LINEAR, ML_MATCH_STRICT);
    chat(ASK(USER("hi")));
    CHECK(f.n_prompt == (int)strlen("[user]hi__[assistant]"));
    chat(ASK(USER("hi") ", " ANSWER("hey") ", " USER("on")));
    CHECK(f.n_prompt == (int)strlen("[user]hi__[assistant]hey__[user]on__[assistant]"));
    CHECK(ask("POST", "/samples", "") == 200);
    CHECK_HAS(body, "\"response_length\": 30, \"loss_mask\": [1, 1, 1, 1, 0, 0, ");
    CHECK_HAS(body, "0, 0, 1, 1, 1, 1], \"rollout_log_probs\": ");
    CHECK_HAS(body, "\"rollout_log_probs\": [-1.625, -1.578125, -1.890625, -3.125, 0, ");
    CHECK_HAS(body, "\"weight_version_tokens\": [30]");
    CHECK_HAS(body, "\"response\": \"hey<|im_end|>\\n[user]on<|im_end|>\\n[assistant]hey<|"
                    "im_end|>\"");
    CHECK_HAS(body, "\"status\": \"completed\", \"n_turn\": 2");
    CHECK_HAS(body, "\"tito_session_mismatch\": []");
    stop();
}

/* A template without an end of messages: the token is dropped. */
static void drops_the_end(void) {
    start("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
          "{% if add_generation_prompt %}[assistant]{% endif %}",
          ML_SESSION_LINEAR, ML_MATCH_STRICT);
    chat(ASK(USER("hi")));
    chat(ASK(USER("hi") ", " ANSWER("hey") ", " USER("on")));
    CHECK(f.n_prompt == (int)strlen("[user]hi[assistant]hey[user]on[assistant]"));
    CHECK(ask("POST", "/samples", "{\"max_seq_len\": 30}") == 200);
    CHECK_HAS(body, "\"response_length\": 4, \"loss_mask\": [1, 1, 1, 1]");
    CHECK(ask("POST", "/samples", "{}") == 200);
    CHECK_HAS(body, "\"response_length\": 26, \"loss_mask\": [1, 1, 1, 0, 0, ");
    CHECK_HAS(body, "\"tito_session_mismatch\": []");
    stop();
}

/* After a stop string, the template's end of the message follows. */
static void closes_answers(void) {
    start(LINES, ML_SESSION_LINEAR, ML_MATCH_STRICT);
    chat("{\"messages\": [" USER("hi") "], \"stop\": \"y\"}");
    CHECK_HAS(body, "\"content\": \"he\"");
    chat(ASK(USER("hi") ", " ANSWER("he") ", " USER("on")));
    CHECK(f.n_prompt == (int)strlen("[user]hi__[assistant]hey__[user]on__[assistant]"));
    CHECK(ask("POST", "/samples", "") == 200);
    CHECK_HAS(body, "\"type\": \"assistant_text\""); /* the stop string was drawn */
    stop();
}

/* The recorded answer has other spaces than its text would get. */
static void mismatches(void) {
    static const char strips[] = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim "
                                 "}}<|im_end|>\n{% endfor %}"
                                 "{% if add_generation_prompt %}[assistant]{% endif %}";

    start(strips, ML_SESSION_LINEAR, ML_MATCH_STRICT);
    f.script = " hey ";
    chat(ASK(USER("hi")));
    CHECK_HAS(body, "\"content\": \" hey \"");
    chat(ASK(USER("hi") ", " ANSWER(" hey ") ", " USER("on")));
    CHECK(ask("POST", "/samples", "") == 200);
    CHECK(count("\"type\": \"assistant_text\"") == 2);
    CHECK_HAS(body, "\"expected_text\": \"\\n[assistant]hey\", \"actual_text\": "
                    "\"\\n[assistant] hey \"");
    CHECK(ml_serve_ask(&f, "GET", "/metrics", NULL, "", &body) == 200);
    CHECK_HAS(body, "session_assistant_text_total{model_name=\"fake\"} 2");
    CHECK_HAS(body, "num_sessions{model_name=\"fake\"} 1");
    stop();
}

/* --- branches ------------------------------------------------------------------------- */

static void linear(void) {
    start(LINES, ML_SESSION_LINEAR, ML_MATCH_STRICT);
    chat(ASK(USER("hi")));
    chat(ASK(USER("hi") ", " ANSWER("hey") ", " USER("on")));
    chat(ASK(
        USER("hi") ", " ANSWER("hey") ", " USER("again"))); /* discards the last answer */
    CHECK(ask("POST", "/v1/chat/completions", ASK(USER("new"))) == 400);
    CHECK_HAS(body, "discards one answer at most");
    CHECK(ask("GET", "", "") == 200);
    CHECK(count("\"response_id\"") == 2);
    CHECK_HAS(body, "\"content\": \"again\"");
    CHECK(ask("POST", "/samples", "") == 200);
    CHECK(count("\"response_length\"") == 1);
    stop();
}

static void tree(void) {
    start(LINES, ML_SESSION_TREE, ML_MATCH_STRICT);
    CHECK(ask("POST", "/samples", "") == 200);
    CHECK_HAS(body, "\"samples\": [], ");
    CHECK_HAS(body, "\"empty_reason\": \"no_records\"");
    chat(ASK(USER("hi")));
    chat(ASK(USER("hi") ", " ANSWER("hey") ", " USER("on")));
    chat(ASK(USER("hi") ", " ANSWER("hey") ", " USER("again")));
    chat(ASK(USER("new")));
    CHECK(ask("POST", "/samples", "") == 200);
    CHECK(count("\"response_length\"") == 3);
    CHECK_HAS(body, "\"node_id\": 1, \"parent\": 0, \"path_node_ids\": [0, 1], ");
    CHECK_HAS(body, "\"node_id\": 2, \"parent\": 0, \"path_node_ids\": [0, 2], ");
    CHECK_HAS(body, "\"node_id\": 3, \"parent\": null, \"path_node_ids\": [3], ");
    chat("{\"messages\": [" USER("cut") "], \"max_tokens\": 1}");
    CHECK(ask("POST", "/v1/chat/completions",
              ASK(USER("cut") ", " ANSWER("h") ", " USER("on"))) == 409);
    stop();
}

#define CALL(arguments)                                                                    \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": "              \
    "\"call_9e3779b97f4a7c1a00000000\", \"type\": \"function\", \"function\": {\"name\": " \
    "\"get\", \"arguments\": " arguments "}}]}"
#define GET ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get\"}}]}"

/* Whether a request that repeats the recorded call, spelled so, continues it. */
static bool repeats(ml_message_matcher matcher, const char *message) {
    char json[1000];
    bool same;

    start("{{ tools | length if tools else 0 }}" LINES, ML_SESSION_TREE, matcher);
    f.script = "<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": 1, \"b\": 2}}"
               "</tool_call>";
    chat("{\"messages\": [" USER("hi") "]" GET);
    snprintf(
        json, sizeof json,
        "{\"messages\": [" USER("hi") ", %s, {\"role\": \"tool\", \"content\": \"3\"}]" GET,
        message);
    chat(json);
    CHECK(ask("POST", "/samples", "") == 200);
    same = count("\"response_length\"") == 1;
    stop();
    return same;
}

static void matchers(void) {
    CHECK(repeats(ML_MATCH_STRICT, CALL("\"{\\\"a\\\": 1, \\\"b\\\": 2}\"")));
    CHECK(!repeats(ML_MATCH_STRICT, CALL("\"{\\\"a\\\":1,\\\"b\\\":2}\"")));
    CHECK(repeats(ML_MATCH_STRICT, CALL("{\"a\": 1, \"b\": 2}")));
    CHECK(repeats(ML_MATCH_LOOSE_TOOL_CALL, CALL("\"{\\\"b\\\":2,\\\"a\\\":1}\"")));
    CHECK(!repeats(ML_MATCH_LOOSE_TOOL_CALL, CALL("\"{\\\"b\\\":2,\\\"a\\\":1.0}\"")));
    CHECK(!repeats(ML_MATCH_LOOSE_TOOL_CALL, ANSWER("")));
    CHECK(repeats(ML_MATCH_ROLE_CONTENT_ONLY, ANSWER("")));
}

/* --- requests --------------------------------------------------------------------------- */

static void parameters(void) {
    uint64_t seed;

    start(LINES, ML_SESSION_TREE, ML_MATCH_STRICT);
    chat("{\"messages\": [" USER("hi") "], \"temperature\": 0.5}");
    CHECK(f.temperature == 0.5f);
    seed = f.seed;
    session[0] = 0;
    CHECK(ask("POST", "/sessions",
              "{\"seed\": 5, \"sampling_params\": {\"temperature\": 0.7, "
              "\"max_new_tokens\": 2}}") == 200);
    CHECK(sscanf(body, "{\"session_id\": \"%32[0-9a-f]\"}", session + 10) == 1);
    memcpy(session, "/sessions/", 10);
    chat("{\"messages\": [" USER("hi") "], \"temperature\": 0.5, \"model\": \"gpt\"}");
    CHECK(f.temperature == 0.7f && f.max_new == 2 && f.seed == seed);
    chat("{\"messages\": [" USER("hi") "], \"max_tokens\": 3}");
    CHECK(f.max_new == 3 && f.seed != seed);
    CHECK(ask("POST", "/v1/chat/completions",
              "{\"messages\": [" USER("hi") "], \"n\": 2}") == 400);
    CHECK(ask("POST", "/v1/messages",
              "{\"max_tokens\": 9, \"stream\": true, \"messages\": [" USER("hi") "]}") ==
          200);
    CHECK_HAS(body, "event: message_stop");
    stop();
}

static void access_control(void) {
    char path[100];

    ml_serve_fixture_init(&f);
    f.opts.sessions = (ml_session_opts){ .on = true };
    f.opts.access.api_key = "k";
    ml_serve_fixture_start(&f);
    CHECK(ml_serve_ask(&f, "POST", "/sessions", NULL, "{}", &body) == 401);
    CHECK(ml_serve_ask(&f, "POST", "/sessions", "X-API-Key: k\r\n", "{\"owner\": \"me\"}",
                       &body) == 200);
    body = strstr(body, "{\"session_id\"");
    CHECK(body && sscanf(body, "{\"session_id\": \"%32[0-9a-f]\"}", session) == 1);
    snprintf(path, sizeof path, "/sessions/%.32s", session);
    CHECK(ml_serve_ask(&f, "GET", path, NULL, "", &body) == 200);
    CHECK(ml_serve_ask(&f, "GET", path, "Origin: http://evil.example\r\n", "", &body) ==
          403);
    CHECK(ml_serve_ask(&f, "POST", path, NULL, "", &body) == 405);
    CHECK(ml_serve_ask(&f, "GET", "/sessions/00000000000000000000000000000000", NULL, "",
                       &body) == 404);
    CHECK(ml_serve_ask(&f, "GET", "/sessions/x/../y", NULL, "", &body) == 404);
    CHECK(ml_serve_ask(&f, "POST", "/sessions", "X-API-Key: k\r\n", "{\"owner\": \"me\"}",
                       &body) == 200);
    CHECK(ml_serve_ask(&f, "DELETE", path, NULL, "", &body) == 404); /* it was replaced */
    stop();
}

static const ml_test tests[] = {
    { "a session continues the tokens that were drawn", continues },
    { "a template without an end of messages drops the end token", drops_the_end },
    { "an answer that a stop string ended is closed", closes_answers },
    { "recorded tokens are compared with the rendered conversation", mismatches },
    { "a linear session discards one answer at most", linear },
    { "a tree has a sample for each leaf", tree },
    { "message matchers compare tool calls", matchers },
    { "a session's parameters and seed apply to its requests", parameters },
    { "the id of a session is its key", access_control },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
