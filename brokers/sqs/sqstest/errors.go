package sqstest

import (
	"errors"
	"fmt"
	"net/http"
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

// kindOf finds the error of a code in either spelling. A code that is not
// known is its own shape and query code, with status 400.
func kindOf(code string) kind {
	const modelled, legacy = "com.amazonaws.sqs#", "AWS.SimpleQueueService."
	const general = "com.amazon.coral.service#"
	bare := code[strings.LastIndex(code, "#")+1:]
	status := http.StatusBadRequest
	switch bare {
	case "PurgeQueueInProgress", legacy + "PurgeQueueInProgress":
		status = http.StatusForbidden
	case "ResourceNotFoundException":
		status = http.StatusNotFound
	}
	k := func(shape, query string) kind { return kind{modelled + shape, query, status} }
	switch bare {
	case "BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest", "InvalidBatchEntryId",
		"MessageNotInflight", "PurgeQueueInProgress", "QueueDeletedRecently",
		"TooManyEntriesInBatchRequest", "UnsupportedOperation":
		return k(bare, legacy+bare)
	case "InvalidAddress", "InvalidSecurity", "OverLimit", "ReceiptHandleIsInvalid", "RequestThrottled",
		"ResourceNotFoundException", "InvalidAttributeName", "InvalidAttributeValue", "InvalidMessageContents",
		"InvalidIdFormat":
		return k(bare, bare)
	case "QueueDoesNotExist", "NonExistentQueue":
		return k("QueueDoesNotExist", legacy+"NonExistentQueue")
	case "QueueNameExists", "QueueAlreadyExists":
		return k("QueueNameExists", "QueueAlreadyExists")
	case "KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound":
		name := strings.TrimPrefix(bare, "Kms")
		return k(bare, "KMS."+name+"Exception")
	case "KmsOptInRequired", "KMS.OptInRequired":
		return k("KmsOptInRequired", "KMS.OptInRequired")
	case "KmsThrottled", "KMS.ThrottlingException":
		return k("KmsThrottled", "KMS.ThrottlingException")
	case "InvalidParameterValue", "MissingParameter", "AccessDenied", "ExpiredToken",
		"InvalidParameterValueException", "AccessDeniedException", "ExpiredTokenException":
		name := strings.TrimSuffix(bare, "Exception")
		return kind{general + name + "Exception", name, http.StatusBadRequest}
	case "InvalidAction":
		return kind{general + "UnknownOperationException", bare, http.StatusBadRequest}
	case "UnrecognizedClientException", "InvalidClientTokenId":
		return kind{general + "UnrecognizedClientException", "InvalidClientTokenId", http.StatusForbidden}
	case "ThrottlingException", "Throttling":
		return kind{"com.amazon.coral.availability#ThrottlingException", "Throttling", http.StatusBadRequest}
	case "InternalFailure", "InternalError":
		return kind{general + bare, bare, http.StatusInternalServerError}
	case "ServiceUnavailable":
		return kind{general + "ServiceUnavailableException", bare, http.StatusServiceUnavailable}
	}
	if name, ok := strings.CutPrefix(bare, legacy); ok {
		return kindOf(name)
	}
	if name, ok := strings.CutPrefix(bare, "KMS."); ok {
		return kindOf("Kms" + strings.TrimSuffix(name, "Exception"))
	}
	return kind{general + bare, bare, http.StatusBadRequest}
}
