package service

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/redrive-go/redrive/integration/goldentest"
)

// hostile sends requests that must be refused, and store nothing. The session has
// those that fit into a line.
func hostile(o *office) {
	busy := "00000000-0000-7000-8000-000000000001"
	row := o.put(Task{ID: busy, Tenant: "default", IdempotencyKey: "busy"}).Row
	must(o, errOf(o.store.Claim(o.Context(), []int64{row}, noon, 0)))
	o.put(Task{ID: "00000000-0000-7000-8000-000000000002", Tenant: "other", IdempotencyKey: "key-1"})
	foreign, err := o.api.Bodies.Put(o.Context(), "other", strings.NewReader("a secret"))
	must(o, err)
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
	with := func(e exchange, name string, values ...string) exchange {
		e.header = http.Header{name: values}
		return e
	}
	for _, e := range []exchange{
		post("{\n\"method\" \"GET\"}", malformed, "line 2, byte 10"),
		post(taskBody("")+"\x00", malformed, "after top-level value"),
		post("{\"method\": \"\xff\"}", malformed, "UTF-8"),
		post(`{"headers": `+nested+`}`, malformed, "depth"),
		post(`{"headers": `+nested[15_000:25_000]+`}`, malformed, "nested"),
		post(`{"`+strings.Repeat("x", 5000)+`": 1}`, unknownField, "…"),
		task(`"targetUrl": "https://api.example.com/`+strings.Repeat("a", maxURL)+`"`, invalidTask, "2048"),
		task(`"headers": {`+strings.Join(many, ",")+`}`, invalidTask, "65"),
		task(`"headers": {"X": "`+strings.Repeat("a", maxHeaderBytes)+`"}`, invalidTask, "16384"),
		with(task(`"idempotencyKey": null`, invalidTask, "more than one"), "Idempotency-Key", "a", "b"),
		task(`"bodyBase64": "`+base64.StdEncoding.EncodeToString([]byte(large))+`"`, tooLarge, "16777217 bytes"),
		post(`{"body": "`+large+large+`"}`, tooLarge, "the request"),
		task(`"idempotencyKey": "new", "bodyRef": "`+foreign+`"`, unknownBody, "names nothing"),
		task(`"idempotencyKey": "new", "bodyRef": "default/../`+foreign+`"`, unknownBody, "names nothing"),
		with(task("", invalidTenant, "X-Tenant"), "X-Tenant", strings.Repeat("t", 65)),
		with(exchange{method: "GET", path: "/retry-tasks/" + busy, problem: invalidTenant}, "X-Tenant", "a", "b"),
		{method: "POST", path: "/retry-policies", body: `{"policyId": "` + large[:maxPolicy] + `"}`, problem: tooLarge},
	} {
		o.refused(e, func() { o.do(e) })
	}
	o.session("hostile")
}

// refused fails the test at once if a request stores something, or an answer to it
// is wrong.
func (o *office) refused(e exchange, send func()) {
	o.Helper()
	before := o.stored()
	if send(); o.stored() != before || o.Failed() {
		o.Fatalf("%s %s, with %d things stored: %.200s", e.method, e.path, o.stored()-before, e.body)
	}
}

var yearAround = regexp.MustCompile(`which is \d+ to \d+ now`)

// session sends the requests of a file, which are its lines that begin with "$ ", and
// perhaps a header in brackets. It compares the problems that they are answered with.
func (o *office) session(name string) {
	o.Helper()
	file := filepath.Join("testdata", name+".session")
	var text strings.Builder
	for line := range strings.Lines(goldentest.Read(o, file)) {
		line = strings.TrimSuffix(line, "\n")
		request, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		e := exchange{header: http.Header{}}
		if strings.HasPrefix(request, "[") {
			header, rest, _ := strings.Cut(request[1:], "] ")
			field, value, _ := strings.Cut(header, ": ")
			e.header[field], request = []string{value}, rest
		}
		e.method, request, _ = strings.Cut(request, " ")
		e.path, e.body, _ = strings.Cut(request, " ")
		o.refused(e, func() {
			doc, _, code := o.send(e)
			name, _ := strings.CutPrefix(fmt.Sprint(doc["type"]), problems)
			detail := yearAround.ReplaceAllString(fmt.Sprint(doc["detail"]), "which is … now")
			fmt.Fprintf(&text, "%s\n%d %s: %s\n\n", line, code, name, detail)
		})
	}
	goldentest.File(o, file, text.String())
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
	must(o, o.store.Close())
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
		if header.Get("Retry-After") == "" || strings.Contains(doc["detail"].(string), "closed") {
			o.Errorf("%v, %v: want Retry-After, and nothing of the store's error", header, doc)
		}
	}
	o.open()
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
	o.task("shop", doc)
	o.do(exchange{method: "GET", path: "/retry-tasks/" + doc["taskId"].(string), header: bearer("the token of the bank"), problem: noSuchTask})
}
