package sqstest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A kind is one error of the API: the shape that the JSON protocol names, the
// code that the query protocol had for it, the HTTP status.
type kind struct {
	shape  string
	query  string
	status int
}

// fault is whose fault the query protocol says an error is.
func (k kind) fault() string {
	if k.status >= http.StatusInternalServerError {
		return "Receiver"
	}
	return "Sender"
}

// An apiError is an error that the client is told.
type apiError struct {
	kind    kind
	message string
}

func (e *apiError) Error() string { return e.kind.query + ": " + e.message }

// fail makes an error. The code is one of either spelling.
func fail(code, format string, arguments ...any) *apiError {
	return &apiError{kind: kindOf(code), message: fmt.Sprintf(format, arguments...)}
}

// invalid is the error about the value of a parameter.
func invalid(parameter string, value any, reason string) *apiError {
	return fail("InvalidParameterValue", "Value %v for parameter %s is invalid. Reason: %s", value, parameter, reason)
}

// missing is the error about a parameter that is not there.
func missing(parameter string) *apiError {
	return fail("MissingParameter", "The request must contain the parameter %s.", parameter)
}

// asError makes an error of the API of any error.
func asError(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	return fail("InternalFailure", "%v", err)
}

const (
	modelled = "com.amazonaws.sqs#"
	general  = "com.amazon.coral.service#"
	legacy   = "AWS.SimpleQueueService."
)

// kinds are the errors that are not simply a shape of the service, with the same
// code and status 400, by their codes in either spelling without legacy.
var kinds = map[string]kind{
	"QueueDoesNotExist":           {modelled + "QueueDoesNotExist", legacy + "NonExistentQueue", 400},
	"NonExistentQueue":            {modelled + "QueueDoesNotExist", legacy + "NonExistentQueue", 400},
	"QueueNameExists":             {modelled + "QueueNameExists", "QueueAlreadyExists", 400},
	"QueueAlreadyExists":          {modelled + "QueueNameExists", "QueueAlreadyExists", 400},
	"PurgeQueueInProgress":        {modelled + "PurgeQueueInProgress", legacy + "PurgeQueueInProgress", 403},
	"KmsOptInRequired":            {modelled + "KmsOptInRequired", "KMS.OptInRequired", 400},
	"KmsThrottled":                {modelled + "KmsThrottled", "KMS.ThrottlingException", 400},
	"KmsThrottling":               {modelled + "KmsThrottled", "KMS.ThrottlingException", 400},
	"InvalidAction":               {general + "UnknownOperationException", "InvalidAction", 400},
	"UnrecognizedClientException": {general + "UnrecognizedClientException", "InvalidClientTokenId", 403},
	"InvalidClientTokenId":        {general + "UnrecognizedClientException", "InvalidClientTokenId", 403},
	"ThrottlingException":         {"com.amazon.coral.availability#ThrottlingException", "Throttling", 400},
	"Throttling":                  {"com.amazon.coral.availability#ThrottlingException", "Throttling", 400},
	"InternalFailure":             {general + "InternalFailure", "InternalFailure", 500},
	"InternalError":               {general + "InternalError", "InternalError", 500},
	"ServiceUnavailable":          {general + "ServiceUnavailableException", "ServiceUnavailable", 503},
}

// Codes of one pattern each.
var (
	legacyCodes = []string{"BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest", "InvalidBatchEntryId",
		"MessageNotInflight", "QueueDeletedRecently", "TooManyEntriesInBatchRequest", "UnsupportedOperation"}
	plainCodes = []string{"InvalidAddress", "InvalidSecurity", "OverLimit", "ReceiptHandleIsInvalid", "RequestThrottled",
		"InvalidAttributeName", "InvalidAttributeValue", "InvalidMessageContents", "InvalidIdFormat"}
	kmsCodes     = []string{"KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound"}
	generalCodes = []string{"InvalidParameterValue", "MissingParameter", "AccessDenied", "ExpiredToken"}
)

// kindOf finds the error of a code in either spelling. A code that is not
// known is its own shape and query code, with status 400.
func kindOf(code string) kind {
	bare := strings.TrimPrefix(code[strings.LastIndex(code, "#")+1:], legacy)
	if kms, ok := strings.CutPrefix(bare, "KMS."); ok {
		bare = "Kms" + strings.TrimSuffix(kms, "Exception")
	}
	name := strings.TrimSuffix(bare, "Exception")
	switch k, ok := kinds[bare]; {
	case ok:
		return k
	case slices.Contains(legacyCodes, bare):
		return kind{modelled + bare, legacy + bare, 400}
	case slices.Contains(plainCodes, bare):
		return kind{modelled + bare, bare, 400}
	case slices.Contains(kmsCodes, bare):
		return kind{modelled + bare, "KMS." + strings.TrimPrefix(bare, "Kms") + "Exception", 400}
	case slices.Contains(generalCodes, name):
		return kind{general + name + "Exception", name, 400}
	}
	return kind{general + bare, bare, 400}
}
