package service

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// problem is what a caller gets who asks for what cannot be done, as RFC 9457 has it.
// Whenever there is one, nothing was stored; [unavailable] alone does not promise it.
type problem struct {
	kind

	Detail string // what is wrong, and how to fix it
	Field  string // of the request, if it is one
}

// kind is a type of problems.
type kind struct {
	name    string // the end of its URI
	status  int
	title   string
	meaning string // for the reference
}

// problems is the page that says what each type means.
const problems = "https://github.com/redrive-go/redrive/blob/main/docs/reference/retry-service.md#"

var (
	malformed       = kind{"malformed-json", http.StatusBadRequest, "The request is no JSON that can be read", "A syntax error, text after the end, a name that is there twice, a null, or nesting that no field needs."}
	unknownField    = kind{"unknown-field", http.StatusBadRequest, "There is no such field", "A misspelt field would be ignored, and its default taken, so it is refused."}
	invalidQuery    = kind{"invalid-query", http.StatusBadRequest, "The query cannot be read", "`cursor` or `limit` is not what the operation takes."}
	invalidTenant   = kind{"invalid-tenant", http.StatusBadRequest, "This is no name of a tenant", "`X-Tenant` is there twice, or is not made of at most 64 letters, digits, `-`, `_` and `.`, which does not begin."}
	unauthorized    = kind{"unauthorized", http.StatusUnauthorized, "The token is missing or unknown", "The service has tokens, and the request shows none of them."}
	otherTenant     = kind{"other-tenant", http.StatusForbidden, "The token is of another tenant", "`X-Tenant` names another tenant than the token is of."}
	untrustedHost   = kind{"untrusted-host", http.StatusForbidden, "The request is not for this machine", "The service has no tokens, so it answers to loopback names only, and to no web page of another site: a browser may have one open."}
	noSuchPath      = kind{"no-such-path", http.StatusNotFound, "There is nothing here", "The path is none of this API."}
	noSuchTask      = kind{"no-such-task", http.StatusNotFound, "There is no such task", "This tenant has no task with this ID, or no longer: `service.retention` is how long those are kept that have ended."}
	noSuchMethod    = kind{"method-not-allowed", http.StatusMethodNotAllowed, "The method is not allowed here", "The header `Allow` says which are."}
	slow            = kind{"request-timeout", http.StatusRequestTimeout, "The request took too long", "Its body was not there in time."}
	keyReused       = kind{"idempotency-key-reused", http.StatusConflict, "The idempotency key belongs to another task", "A task with this key and other content exists. A key stands for one task until that is deleted, `service.retention` after it ended."}
	notPending      = kind{"task-not-pending", http.StatusConflict, "Only a task that is PENDING can be cancelled", "One in flight may have had its effect already, and the others are at an end."}
	notExhausted    = kind{"task-not-exhausted", http.StatusConflict, "Only a task that is EXHAUSTED can be sent again", "One that is PENDING or IN_FLIGHT is at work, or came back already, and the others are at an end: send a new task, with a key of its own."}
	tooLarge        = kind{"body-too-large", http.StatusRequestEntityTooLarge, "The body is too large", "The request, or the body in it, is over a limit."}
	noJSON          = kind{"unsupported-media-type", http.StatusUnsupportedMediaType, "The request is not marked as JSON", "`Content-Type` must be `application/json`, which keeps web pages of others out."}
	invalidTask     = kind{"invalid-task", http.StatusUnprocessableEntity, "The task is not valid", "`field` says which of its fields is wrong, and `detail` what it may be."}
	invalidPolicy   = kind{"invalid-policy", http.StatusUnprocessableEntity, "The policy is not valid", "`detail` says what is wrong, and what it may be."}
	unknownPolicy   = kind{"unknown-policy", http.StatusUnprocessableEntity, "There is no such policy", "This tenant has no policy with this ID: register it first."}
	unknownBody     = kind{"unknown-body", http.StatusUnprocessableEntity, "There is no such body", "`bodyRef` names nothing that is kept for this tenant."}
	targetForbidden = kind{"target-not-allowed", http.StatusUnprocessableEntity, "The target is not allowed", "The service may not call it: see `service.allow` of its configuration."}
	noSuchPolicy    = kind{"no-such-policy", http.StatusNotFound, "There is no such policy", "This tenant has no policy with this ID."}
	policyUsed      = kind{"policy-in-use", http.StatusConflict, "Tasks use the policy", "A task with this policy is PENDING, IN_FLIGHT or EXHAUSTED."}
	overQuota       = kind{"over-quota", http.StatusTooManyRequests, "The tenant has reached its quota", "`detail` names the quota, the amount that is kept, and the fix. `Retry-After` says when to send the request again."}
	busy            = kind{"too-many-large-requests", http.StatusServiceUnavailable, "There are too many large requests", "Of requests above 1 MiB two of a tenant are read at a time, and fourteen wait, ten seconds at most."}
	unavailable     = kind{"unavailable", http.StatusServiceUnavailable, "The service cannot store anything now", "Whether the request was stored is not known. Send it again with the same key: it is not stored twice."}
)

// kinds are all of them.
var kinds = []kind{
	malformed, unknownField, invalidQuery, invalidTenant, unauthorized, otherTenant, untrustedHost, noSuchPath, noSuchTask, noSuchMethod, slow,
	noSuchPolicy, policyUsed, overQuota, keyReused, notPending, notExhausted, tooLarge, noJSON, invalidTask, invalidPolicy, unknownPolicy, unknownBody, targetForbidden, busy, unavailable,
}

// because makes a problem.
func (k kind) because(format string, args ...any) *problem {
	return &problem{kind: k, Detail: fmt.Sprintf(format, args...)}
}

// in makes a problem of a field.
func (k kind) in(field, format string, args ...any) *problem {
	return &problem{kind: k, Field: field, Detail: field + " " + fmt.Sprintf(format, args...)}
}

func (p *problem) Error() string { return p.title + ": " + p.Detail }

// problemDoc is a problem as callers get it.
type problemDoc struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Field  string `json:"field,omitempty"`
}

func (p *problem) write(w http.ResponseWriter) {
	answer(w, p.status, "application/problem+json", problemDoc{problems + p.name, p.title, p.status, p.Detail, p.Field})
}

func answer(w http.ResponseWriter, status int, mediaType string, doc any) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(doc) // who no longer reads knows
}
