package service

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
)

// hostile sends what must be refused, and demands that it says why and stores nothing.
func hostile(o *office) {
	busy := "00000000-0000-7000-8000-000000000001"
	o.store.tasks[busy] = Task{ID: busy, Tenant: "default", IdempotencyKey: "busy", Status: InFlight}
	other := "00000000-0000-7000-8000-000000000002"
	o.store.tasks[other] = Task{ID: other, Tenant: "other", IdempotencyKey: "key-1", Status: Pending}
	foreign, err := o.api.Bodies.Put(o.Context(), "other", strings.NewReader("a secret"))
	if err != nil {
		o.Fatal(err)
	}
	large := strings.Repeat("a", maxBody+1)
	nested := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	var many []string
	for i := range maxHeaders + 1 {
		many = append(many, fmt.Sprintf(`"X-%d": ""`, i))
	}
	post := func(body string, k kind, detail string) exchange {
		return exchange{method: "POST", path: "/retry-tasks", body: body, problem: k, detail: detail}
	}
	task := func(change string, k kind, detail string) exchange { return post(taskBody(change), k, detail) }
	policy := func(from, to string, k kind, detail string) exchange {
		return exchange{method: "POST", path: "/retry-policies", body: strings.Replace(policyBody, from, to, 1), problem: k, detail: detail}
	}
	with := func(e exchange, name string, values ...string) exchange {
		e.header = http.Header{name: values}
		return e
	}
	get := func(path string, k kind, detail string) exchange {
		return exchange{method: "GET", path: path, problem: k, detail: detail}
	}
	for _, e := range []exchange{
		// JSON
		post(``, malformed, "line 1"),
		post(`[]`, malformed, "begin with {"),
		post(`{`, malformed, "unexpected end"),
		post("{\n\"method\" \"GET\"}", malformed, "line 2, byte 10"),
		post(taskBody("")+"{}", malformed, "after top-level value"),
		post(taskBody("")+"\x00", malformed, "after top-level value"),
		post("{\"method\": \"\xff\"}", malformed, "UTF-8"),
		post(`{"body": "\ud800"}`, malformed, "bodyBase64"),
		post(`{"method": "GET", "method": "PUT"}`, malformed, "twice"),
		post(`{"headers": {"A": "1", "A": "2"}}`, malformed, `"headers.A" is there twice`),
		post(`{"method": null}`, malformed, "method is null"),
		post(`{"method": 5}`, malformed, "method must be a string"),
		post(`{"headers": ["A"]}`, malformed, "must be an object"),
		post(`{"headers": {"A": {"B": {"C": {}}}}}`, malformed, "nested"),
		post(`{"headers": `+nested+`}`, malformed, "depth"),
		post(`{"headers": `+nested[15_000:25_000]+`}`, malformed, "nested"),
		post(`{"delayMs": 1e999}`, malformed, "whole number"),
		post(`{"delayMs": 99999999999999999999}`, malformed, "whole number"),
		post(`{"delayMs": 0.5}`, malformed, "whole number"),
		post(`{"targetURL": "https://api.example.com"}`, unknownField, "did you mean targetUrl?"),
		post(`{"`+strings.Repeat("x", 5000)+`": 1}`, unknownField, "…"),
		task(`"status": "SUCCEEDED"`, unknownField, "status"),
		with(task("", noJSON, "Content-Type"), "Content-Type", "text/plain"),
		// Targets
		task(`"targetUrl": null`, invalidTask, "http://"),
		task(`"targetUrl": "ftp://api.example.com"`, invalidTask, "http://"),
		task(`"targetUrl": "//api.example.com"`, invalidTask, "http://"),
		task(`"targetUrl": "http:api.example.com"`, invalidTask, "name a host"),
		task(`"targetUrl": "http://:80/"`, invalidTask, "name a host"),
		task(`"targetUrl": "https://u:p@api.example.com"`, invalidTask, "Authorization"),
		task(`"targetUrl": "https://api.example.com/#x"`, invalidTask, "fragment"),
		task(`"targetUrl": "https://api.example.com/#"`, invalidTask, "fragment"),
		task(`"targetUrl": "https://api.example.com:99999/"`, invalidTask, "port"),
		task(`"targetUrl": "https://api.example.com:x/"`, invalidTask, "no URL"),
		task(`"targetUrl": "https://api.example.com/\r\nX: y"`, invalidTask, "visible"),
		task(`"targetUrl": "https://api.example.com/é"`, invalidTask, "%XX"),
		task(`"targetUrl": "https://api.example.com/`+strings.Repeat("a", maxURL)+`"`, invalidTask, "2048"),
		task(`"idempotencyKey": "new", "targetUrl": "https://forbidden.example/"`, targetForbidden, "on no list"),
		task(`"method": "get"`, invalidTask, "capitals"),
		task(`"method": "GET / HTTP/1.1\r\nX:"`, invalidTask, "capitals"),
		task(`"method": "CONNECT"`, invalidTask, "CONNECT"),
		// Headers
		task(`"headers": {"X": "a\r\nY: b"}`, invalidTask, "value of X"),
		task(`"headers": {"X": "a\u0000"}`, invalidTask, "value of X"),
		task(`"headers": {"X": " a"}`, invalidTask, "value of X"),
		task(`"headers": {"X\r\nY": "a"}`, invalidTask, "which is none"),
		task(`"headers": {"": "a"}`, invalidTask, "which is none"),
		task(`"headers": {"X:": "a"}`, invalidTask, "which is none"),
		task(`"headers": {"x-a": "1", "X-A": "2"}`, invalidTask, "X-A twice"),
		task(`"headers": {"host": "internal"}`, invalidTask, "Host"),
		task(`"headers": {"content-length": "1"}`, invalidTask, "Content-Length"),
		task(`"headers": {"transfer-encoding": "chunked"}`, invalidTask, "Transfer-Encoding"),
		task(`"headers": {"idempotency-key": "another"}`, invalidTask, "Idempotency-Key"),
		task(`"headers": {`+strings.Join(many, ",")+`}`, invalidTask, "65"),
		task(`"headers": {"X": "`+strings.Repeat("a", maxHeaderBytes)+`"}`, invalidTask, "16384"),
		// Keys
		task(`"idempotencyKey": null`, invalidTask, "idempotencyKey must have"),
		task(`"idempotencyKey": "a b"`, invalidTask, "visible"),
		task(`"idempotencyKey": "a\r\nX: b"`, invalidTask, "visible"),
		task(`"idempotencyKey": "`+strings.Repeat("k", maxKey+1)+`"`, invalidTask, "200"),
		with(task("", invalidTask, "not that of the header"), "Idempotency-Key", "key-9"),
		with(task(`"idempotencyKey": null`, invalidTask, "more than one"), "Idempotency-Key", "a", "b"),
		task(`"targetUrl": "https://other.example/"`, keyReused, "key-1"),
		// Policies
		task(`"policyId": null`, invalidTask, "policyId"),
		task(`"policyId": "../quick"`, invalidTask, "policyId"),
		task(`"policyId": "none", "idempotencyKey": "new"`, unknownPolicy, "none"),
		with(task(`"idempotencyKey": "new"`, unknownPolicy, "other"), "X-Tenant", "other"),
		policy(`"maxAttempts": 4`, `"maxAttempts": -1`, invalidPolicy, "maxAttempts is -1"),
		policy(`"maxAttempts": 4`, `"maxAttempts": 2000000000`, invalidPolicy, "use 1 to 100"),
		policy(`"maxAttempts": 4`, `"maxAttempts": 0`, invalidPolicy, "for the default"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": -100`, invalidPolicy, "maxDelayMs is -100"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": 5`, invalidPolicy, "initialDelayMs"),
		policy(`"EXPONENTIAL"`, `""`, invalidPolicy, "backoff"),
		policy(`"EXPONENTIAL"`, `"FIXED"`, invalidPolicy, "multiplier"),
		policy(`"NONE"`, `"SOME"`, invalidPolicy, "FULL, EQUAL"),
		policy(`[503]`, `[400]`, invalidPolicy, "retryableStatusCodes"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": 9223372036854775808`, malformed, "maxDelayMs"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": "100"`, malformed, "must be a whole number"),
		policy(`"quick"`, `"a b"`, invalidPolicy, "policyId"),
		policy(`"quick"`, `""`, invalidPolicy, "policyId"),
		policy(`"maxAttempts": 4`, `"version": 7`, unknownField, "version"),
		policy(`"maxAttempts": 4`, `"multiplier": NaN`, malformed, "invalid character"),
		// Times
		task(`"delayMs": -1`, invalidTask, "-1"),
		task(`"delayMs": 9223372036854775807`, invalidTask, "a year"),
		task(`"nextAttemptAt": 1790000000`, invalidTask, "milliseconds since 1970"),
		task(`"nextAttemptAt": -1`, invalidTask, "milliseconds since 1970"),
		task(`"nextAttemptAt": 9223372036854775807`, invalidTask, "a year ahead"),
		task(`"nextAttemptAt": 1, "delayMs": 1`, invalidTask, "one of them"),
		task(`"idempotencyKey": "new", "delayMs": 60000`, invalidTask, "60000"),
		// Bodies
		task(`"body": "a", "bodyBase64": "YQ=="`, invalidTask, "more than once"),
		task(`"bodyBase64": "no base64"`, invalidTask, "base64"),
		task(`"bodyBase64": "`+base64.StdEncoding.EncodeToString([]byte(large))+`"`, tooLarge, "16777217 bytes"),
		post(`{"body": "`+large+large+`"}`, tooLarge, "the request"),
		task(`"idempotencyKey": "new", "bodyRef": "default/`+strings.Repeat("0", 64)+`"`, unknownBody, "names nothing"),
		task(`"idempotencyKey": "new", "bodyRef": "`+foreign+`"`, unknownBody, "names nothing"),
		task(`"idempotencyKey": "new", "bodyRef": "default/../`+foreign+`"`, unknownBody, "names nothing"),
		task(`"idempotencyKey": "new", "bodyRef": "/etc/passwd"`, unknownBody, "names nothing"),
		// Tasks
		{method: "DELETE", path: "/retry-tasks/" + busy, problem: notPending, detail: "IN_FLIGHT"},
		{method: "DELETE", path: "/retry-tasks/" + other, problem: noSuchTask},
		{method: "DELETE", path: "/retry-tasks/x", problem: noSuchTask},
		{method: "POST", path: "/retry-tasks/" + busy + "/redrive", problem: notExhausted, detail: "IN_FLIGHT"},
		{method: "POST", path: "/retry-tasks/" + other + "/redrive", problem: noSuchTask},
		{method: "DELETE", path: "/retry-policies/quick", problem: policyUsed, detail: "use quick"},
		{method: "DELETE", path: "/retry-policies/none", problem: noSuchPolicy, detail: "tenant default"},
		{method: "DELETE", path: "/retry-policies/a%20b", problem: noSuchPolicy, detail: "cannot be the ID"},
		with(exchange{method: "DELETE", path: "/retry-policies/quick", problem: noSuchPolicy}, "X-Tenant", "other"),
		with(exchange{method: "DELETE", path: "/retry-policies/quick", problem: untrustedHost}, "Host", "evil.example"),
		with(exchange{method: "DELETE", path: "/retry-policies/quick", problem: invalidTenant}, "X-Tenant", "a b"),
		{method: "GET", path: "/retry-policies/quick", problem: noSuchMethod, detail: "use DELETE"},
		get("/retry-tasks/"+other, noSuchTask, other),
		get("/retry-tasks/%00", noSuchTask, "no ID"),
		get("/retry-tasks/"+strings.ToUpper("00000000-0000-7000-8000-00000000000a"), noSuchTask, "no ID"),
		get("/retry-tasks/"+other+"/attempts", noSuchTask, other),
		get("/retry-tasks/x/attempts", noSuchTask, "no ID"),
		get("/retry-tasks/"+busy+"/attempts?limit=0", invalidQuery, "limit"),
		get("/retry-tasks/"+busy+"/attempts?limit=501", invalidQuery, "500"),
		get("/retry-tasks/"+busy+"/attempts?limit=1&limit=2", invalidQuery, "one whole number"),
		get("/retry-tasks/"+busy+"/attempts?cursor=-1", invalidQuery, "cursor"),
		get("/retry-tasks/"+busy+"/attempts?cursor=99999999999", invalidQuery, "cursor"),
		get("/retry-tasks/"+busy+"/attempts?page=2", invalidQuery, "page"),
		// Tenants, paths and methods
		with(get("/retry-tasks/"+busy, untrustedHost, "tokens"), "Host", "[2001:db8::1]:7430"),
		with(get("/retry-tasks/"+busy+"/attempts", untrustedHost, "tokens"), "Host", "localhost.evil.example"),
		with(exchange{method: "DELETE", path: "/retry-tasks/" + busy, problem: untrustedHost}, "Host", "127.0.0.1.evil.example"),
		with(task("", invalidTenant, "X-Tenant"), "X-Tenant", strings.Repeat("t", 65)),
		with(get("/retry-tasks/"+busy, invalidTenant, "X-Tenant"), "X-Tenant", "a", "b"),
		with(get("/retry-tasks/"+busy+"/attempts", invalidTenant, "X-Tenant"), "X-Tenant", ".."),
		with(exchange{method: "DELETE", path: "/retry-tasks/" + busy, problem: invalidTenant}, "X-Tenant", "a/b"),
		with(policy("", "", invalidTenant, ""), "X-Tenant", ""),
		with(exchange{method: "POST", path: "/retry-tasks/" + busy + "/redrive", problem: invalidTenant}, "X-Tenant", "a b"),
		with(exchange{method: "POST", path: "/retry-tasks/" + busy + "/redrive", problem: untrustedHost, detail: "web pages"}, "Sec-Fetch-Site", "cross-site"),
		with(exchange{method: "DELETE", path: "/retry-tasks/" + busy, problem: untrustedHost, detail: "web pages"}, "Origin", "https://evil.example"),
		with(task("", untrustedHost, "tokens"), "Host", "evil.example:7430"),
		with(policy("", "", untrustedHost, "tokens"), "Host", "evil.example"),
		with(policy("", "", noJSON, "Content-Type"), "Content-Type", ""),
		{method: "POST", path: "/retry-policies", body: `{"policyId": "` + large[:maxPolicy] + `"}`, problem: tooLarge},
		get("/", noSuchPath, "/openapi.json"),
		get("/retry-tasks/"+busy+"/attempts/1", noSuchPath, "/openapi.json"),
		get("/retry-tasks", noSuchMethod, "use POST"),
		{method: "PATCH", path: "/retry-tasks/" + busy, problem: noSuchMethod, detail: "use GET or DELETE"},
	} {
		name := e.body
		if len(name) > 200 {
			name = name[:200]
		}
		before := o.stored()
		o.do(e)
		if o.stored() != before {
			o.Errorf("%s %s stored something: %s", e.method, e.path, name)
		}
		if o.Failed() {
			o.Fatalf("sent: %s", name)
		}
	}
}

// overQuotas sends requests of a tenant that has reached its quotas.
func overQuotas(o *office) {
	o.api.Quotas.Of = map[string]Quota{"default": {Tasks: 1, Policies: 1}}
	for _, e := range []exchange{
		{method: "POST", path: "/retry-tasks", body: taskBody(`"idempotencyKey": "new"`), problem: overQuota, detail: "tasks that wait"},
		{method: "POST", path: "/retry-policies", body: strings.Replace(policyBody, `"quick"`, `"another"`, 1), problem: overQuota, detail: "versions of policies"},
	} {
		before := o.stored()
		if _, header := o.do(e); header.Get("Retry-After") == "" || o.stored() != before {
			o.Errorf("%s: Retry-After is %q, %d things stored", e.path, header.Get("Retry-After"), o.stored()-before)
		}
	}
	o.do(exchange{method: "POST", path: "/retry-policies", body: policyBody, status: http.StatusOK}) // the policy exists already
	o.api.Quotas.Of = nil
}

// outages has the store fail, and the client hang.
func outages(o *office) {
	id := "00000000-0000-7000-8000-000000000001"
	o.store.broken = errors.New("the disk is full of secrets")
	for _, e := range []exchange{
		{method: "POST", path: "/retry-tasks", body: taskBody(`"idempotencyKey": "new"`), problem: unavailable, detail: "same key"},
		{method: "POST", path: "/retry-policies", body: policyBody, problem: unavailable},
		{method: "GET", path: "/retry-tasks/" + id, problem: unavailable},
		{method: "DELETE", path: "/retry-tasks/" + id, problem: unavailable},
		{method: "DELETE", path: "/retry-policies/quick", problem: unavailable},
		{method: "POST", path: "/retry-tasks/" + id + "/redrive", problem: unavailable},
		{method: "GET", path: "/retry-tasks/" + id + "/attempts", problem: unavailable},
	} {
		doc, header := o.do(e)
		if header.Get("Retry-After") == "" || strings.Contains(doc["detail"].(string), "secrets") {
			o.Errorf("%v, %v: want Retry-After, and nothing of the store's error", header, doc)
		}
	}
	o.store.broken = nil
	taken := most(o.large, "default")
	o.large.most = taken // nobody waits for a place
	o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(`"idempotencyKey": "new", "body": "` + strings.Repeat("a", smallRequest) + `"`), problem: busy})
	for o.large.most = mostQueued; taken > 0; taken-- {
		o.large.give("default")
	}
	for _, path := range []string{"/retry-tasks", "/retry-policies"} {
		r := httptest.NewRequest(http.MethodPost, path, io.MultiReader(strings.NewReader("{"), late{}))
		r.Host = "localhost"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		o.handler.ServeHTTP(w, r)
		if o.described.check(o.T, r, "", w); w.Code != http.StatusRequestTimeout {
			o.Errorf("a request that hangs: %d", w.Code)
		}
	}
}

type late struct{}

func (late) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// withTokens demands the token of the right tenant.
func withTokens(plain *office) {
	o := newOffice(plain.T, Token{"shop", "the token of the shop"}, Token{"bank", "the token of the bank"}, Token{"shop", "the next token of the shop"})
	o.described = plain.described
	id := "00000000-0000-7000-8000-000000000001"
	bearer := func(token string, tenant ...string) http.Header {
		return http.Header{"Authorization": {"Bearer " + token}, "X-Tenant": tenant, "Host": {"retries.example.com"}}
	}
	for _, op := range []exchange{
		{method: "POST", path: "/retry-tasks", body: taskBody("")},
		{method: "POST", path: "/retry-policies", body: policyBody},
		{method: "DELETE", path: "/retry-policies/quick"},
		{method: "GET", path: "/retry-tasks/" + id},
		{method: "DELETE", path: "/retry-tasks/" + id},
		{method: "POST", path: "/retry-tasks/" + id + "/redrive"},
		{method: "GET", path: "/retry-tasks/" + id + "/attempts"},
	} {
		for _, try := range []struct {
			header http.Header
			want   kind
		}{
			{nil, unauthorized},
			{http.Header{"X-Tenant": {"shop"}}, unauthorized},
			{bearer(""), unauthorized},
			{bearer("the token of the shop "), unauthorized},
			{bearer("the token of nobody", "shop"), unauthorized},
			{http.Header{"Authorization": {"Basic the token of the shop"}}, unauthorized},
			{http.Header{"Authorization": {"Bearer the token of the shop", "Bearer the token of the shop"}}, unauthorized},
			{bearer("the token of the bank", "shop"), otherTenant},
			{bearer("the token of the shop", "default"), otherTenant},
		} {
			op.header, op.problem = try.header, try.want
			if _, header := o.do(op); (header.Get("WWW-Authenticate") != "") != (try.want.status == http.StatusUnauthorized) {
				o.Errorf("WWW-Authenticate: %q", header.Get("WWW-Authenticate"))
			}
		}
	}
	if o.stored() > 0 {
		o.Errorf("%d things stored without a token", o.stored())
	}
	o.do(exchange{method: "POST", path: "/retry-policies", body: policyBody, header: bearer("the next token of the shop", "shop"), status: http.StatusOK})
	o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(""), header: bearer("the token of the bank"), problem: unknownPolicy})
	doc, _ := o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(""), header: bearer("the token of the shop"), status: http.StatusAccepted})
	if task := o.store.tasks[doc["taskId"].(string)]; task.Tenant != "shop" {
		o.Errorf("the task is of %s", task.Tenant)
	}
	o.do(exchange{method: "GET", path: "/retry-tasks/" + doc["taskId"].(string), header: bearer("the token of the bank"), problem: noSuchTask})
}
