package service

// Policy says how a task is retried. Times are in milliseconds, as in the API.
type Policy struct {
	Tenant  string `json:"-"`
	ID      string `json:"policyId"`
	Version int    `json:"version"`

	Backoff        string  `json:"backoff"`        // EXPONENTIAL, LINEAR or FIXED
	MaxAttempts    int     `json:"maxAttempts"`    // the first included
	InitialDelayMs int64   `json:"initialDelayMs"` // before the second attempt
	Multiplier     float64 `json:"multiplier"`     // only of EXPONENTIAL
	MaxDelayMs     int64   `json:"maxDelayMs"`

	// TotalBudgetMs is the time from the creation of a task, or its return, to the end
	// of its last attempt. A call is cut off there. A task is EXHAUSTED as soon as an
	// attempt as long as the last one would not end in time, and also if it was never
	// called by then.
	TotalBudgetMs int64 `json:"totalBudgetMs"`

	JitterType string `json:"jitterType"` // FULL, EQUAL, DECORRELATED or NONE

	// RetryableStatusCodes are the responses that are retried. None means those that
	// pass by their nature: 408, 425, 429, and 5xx but 501 and 505.
	RetryableStatusCodes []int `json:"retryableStatusCodes,omitempty"`

	// VisibilityTimeoutMs is how long a worker may take for an attempt before
	// another takes the task.
	VisibilityTimeoutMs int64 `json:"visibilityTimeoutMs"`
}
