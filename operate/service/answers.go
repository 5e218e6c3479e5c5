package service

import "strings"

// taskDoc is a task as callers get it. Times are milliseconds since 1970.
type taskDoc struct {
	TaskID             string            `json:"taskId"`
	IdempotencyKey     string            `json:"idempotencyKey"`
	TargetURL          string            `json:"targetUrl"`
	Method             string            `json:"method"`
	Headers            map[string]string `json:"headers,omitempty"`
	BodyRef            string            `json:"bodyRef,omitempty"`
	PolicyID           string            `json:"policyId"`
	PolicyVersion      int               `json:"policyVersion"`
	Status             Status            `json:"status"`
	AttemptNumber      int               `json:"attemptNumber"`
	NextAttemptAt      int64             `json:"nextAttemptAt,omitempty"` // unless the task is at an end
	CreatedAt          int64             `json:"createdAt"`
	UpdatedAt          int64             `json:"updatedAt"`
	LastResponseStatus int               `json:"lastResponseStatus,omitempty"`
	LastError          string            `json:"lastError,omitempty"`
}

func docOf(t Task) taskDoc {
	d := taskDoc{
		TaskID: t.ID, IdempotencyKey: t.IdempotencyKey, TargetURL: t.TargetURL, Method: t.Method, Headers: masked(t.Headers), BodyRef: t.BodyRef,
		PolicyID: t.PolicyID, PolicyVersion: t.PolicyVersion, Status: t.Status, AttemptNumber: t.AttemptNumber,
		CreatedAt: t.CreatedAt.UnixMilli(), UpdatedAt: t.UpdatedAt.UnixMilli(), LastResponseStatus: t.LastStatus, LastError: visible(t.LastError, t.LastStatus),
	}
	if t.Status == Pending || t.Status == InFlight {
		d.NextAttemptAt = t.NextAttemptAt.UnixMilli()
	}
	return d
}

// mask replaces the value of a header that may be a secret.
const mask = "[redacted]"

// masked returns headers with a mask for each value that may be a secret.
func masked(headers map[string]string) map[string]string {
	shown := make(map[string]string, len(headers))
	for name, value := range headers {
		if shown[name] = value; carriesSecret(name) {
			shown[name] = mask
		}
	}
	return shown
}

// secretWords are parts of header names: the value of a header with one of them
// in its name may be a secret.
var secretWords = []string{"auth", "cookie", "token", "secret", "passw", "credential", "session", "signature", "apikey", "jwt"}

// carriesSecret reports whether the value of a header may be a secret. This is
// so for Authorization, Cookie and X-Api-Key, for example.
func carriesSecret(name string) bool {
	name = strings.ToLower(name)
	for _, word := range secretWords {
		if strings.Contains(name, word) {
			return true
		}
	}
	return strings.HasSuffix(name, "key")
}

// attemptDoc is an attempt as callers get it.
type attemptDoc struct {
	TaskID         string `json:"taskId"`
	AttemptNumber  int    `json:"attemptNumber"`
	StartedAt      int64  `json:"startedAt"`
	DurationMs     int64  `json:"durationMs"`
	ResponseStatus int    `json:"responseStatus,omitempty"`
	ErrorMessage   string `json:"errorMessage,omitempty"`
}

// attemptsDoc is a page of them.
type attemptsDoc struct {
	Attempts   []attemptDoc `json:"attempts"`
	NextCursor string       `json:"nextCursor,omitempty"`
}
