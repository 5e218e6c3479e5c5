package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/redrive-go/redrive/brokers"
)

// errPastTotal reports a visibility timeout that would exceed the 12 h that a
// message can be in flight: nothing was changed.
var errPastTotal = errors.New("SQS keeps a message in flight for 12 h at most, from its receive on")

// errGone reports a settlement in a queue that does not exist any more.
var errGone error = gone{}

type gone struct{}

func (gone) Error() string        { return "the queue does not exist any more, and the message went with it" }
func (gone) Is(target error) bool { return target == brokers.ErrLeaseLost }

// operation is what a call is about to do to a queue.
type operation uint8

const (
	receiving operation = iota
	removing
	hiding
	sending
	resolving
	inspecting
	creating
)

// words says it, and what becomes of the messages if it fails, if it is about any.
func (o operation) words() (doing, aftermath string) {
	switch o {
	case receiving:
		return "receive from", "what the service may have handed out comes back when its visibility timeout ends"
	case removing:
		return "delete from", "the messages come back when their visibility timeouts end"
	case hiding:
		return "change visibility timeouts in", "the old ones stay in force, unless the answer got lost"
	case sending:
		return "send to", "keep the originals"
	case resolving:
		return "look up", ""
	case inspecting:
		return "read the attributes of", ""
	case creating:
		return "create", ""
	}
	return "use", ""
}

func (o operation) settles() bool { return o == removing || o == hiding }

// explain turns err, which ended o, into one that says which queue it is about,
// what it means and how to cure it. What is nobody's fault stays temporary: it
// has no kind.
func explain(err error, o operation, queue string) error {
	if err == nil {
		return nil
	}
	doing, aftermath := o.words()
	doing = fmt.Sprintf("%s the queue %q", doing, queue)
	fix, kind := judge(err, o)
	switch {
	case kind == nil && aftermath != "":
		return fmt.Errorf("%s: %w; %s", doing, err, aftermath)
	case kind == nil:
		return fmt.Errorf("%s: %w", doing, err)
	case fix == "":
		return fmt.Errorf("%s: %w: %w", doing, kind, err)
	}
	return fmt.Errorf("%s: %w: %s: %w", doing, kind, fix, err)
}

// judge says of which kind err is, if of any, and how to cure it.
func judge(err error, o operation) (fix string, kind error) {
	code, message := codeOf(err)
	switch fix := fixOf(code, message); {
	case o.settles() && isGone(err):
		return "", errGone
	case isGone(err):
		return fix, brokers.ErrNotFound
	case fix != "":
		return fix, brokers.ErrMisconfigured
	case o.settles():
		return "", judgeHandle(code, message)
	case o == sending && isBad(code):
		return "", brokers.ErrRefused
	case o == sending && isOpen(err, code):
		return "", brokers.ErrUnknownOutcome
	case o > sending && isBad(code):
		return "a queue name has 1 to 80 letters, digits, hyphens and underscores, and .fifo at its end if it is FIFO; see the service's words for attributes", brokers.ErrMisconfigured
	}
	return "", nil
}

// judgeHandle tells a handle that is no good from a timeout that is too long.
func judgeHandle(code, message string) error {
	switch code {
	case "ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidIdFormat":
		return brokers.ErrLeaseLost
	case "InvalidParameterValue":
		message = strings.ToLower(message)
		if strings.Contains(message, "total visibility") {
			return errPastTotal
		}
		for _, gone := range []string{"handle", "not available", "expired", "does not exist", "not in flight"} {
			if strings.Contains(message, gone) {
				return brokers.ErrLeaseLost
			}
		}
	}
	return nil
}

// isBad reports whether the service refuses what was sent as it is.
func isBad(code string) bool {
	switch code {
	case "InvalidMessageContents", "BatchRequestTooLong", "InvalidParameterValue", "MissingParameter",
		"InvalidAttributeName", "InvalidAttributeValue", "InvalidParameterCombination", "ValidationError", "ValidationException":
		return true
	}
	return false
}

// isOpen reports whether a send that failed with err may have been done: the
// answer got lost, or the service does not know itself.
func isOpen(err error, code string) bool {
	if _, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok || isOver(err) {
		return true
	}
	switch code {
	case "InternalFailure", "InternalError", "InternalServerError", "ServiceUnavailable", "RequestTimeout":
		return true
	}
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok {
		return false
	}
	// An answer that says neither yes nor no is no answer.
	return code == "" || answer.HTTPStatusCode() >= http.StatusInternalServerError
}

// mayBeDone reports whether a call that failed with err may have taken effect.
func mayBeDone(err error) bool {
	if err == nil {
		return false
	}
	code, _ := codeOf(err)
	return code == "" || isOpen(err, code)
}

// isOver reports whether the time for a call was over.
func isOver(err error) bool {
	_, canceled := errors.AsType[*smithy.CanceledError](err)
	return canceled || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// isOverLimit reports whether a receive failed because about 120,000 messages
// of the queue are in flight.
func isOverLimit(err error) bool {
	code, _ := codeOf(err)
	return code == "OverLimit"
}

// isGone reports whether err says that there is no such queue.
func isGone(err error) bool {
	code, _ := codeOf(err)
	return code == "QueueDoesNotExist"
}

// isOfIdentity reports whether err is about the credentials of the worker, and so
// about all queues.
func isOfIdentity(err error) bool {
	switch code, message := codeOf(err); code {
	case "InvalidSecurity", "SignatureDoesNotMatch", "InvalidClientTokenId", "MissingAuthenticationToken":
		return fixOf(code, message) != ""
	}
	return false
}

// fixOf says what an operator can do, where nobody else can do anything.
func fixOf(code, message string) string {
	switch code {
	case "QueueDoesNotExist", "InvalidAddress":
		return "create the queue, or correct its name, account or region; a queue of another account needs its URL, and its policy must let this one in"
	case "AccessDenied":
		return "grant the identity sqs:ReceiveMessage, DeleteMessage, ChangeMessageVisibility, SendMessage, GetQueueUrl and GetQueueAttributes on the queue and on its dead-letter queue"
	case "KmsAccessDenied":
		return "grant the identity kms:Decrypt and kms:GenerateDataKey on the key of the queue"
	case "KmsDisabled", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired", "KmsInvalidKeyUsage":
		return "enable or restore the key that encrypts the queue, or give the queue another one"
	case "InvalidSecurity":
		return "the queue wants HTTPS and a signature of version 4: check Options.Endpoint"
	case "UnsupportedOperation":
		return "the service does not do this with a queue of this kind"
	case "SignatureDoesNotMatch":
		if strings.Contains(message, "expired") || strings.Contains(message, "not yet current") {
			return "" // the clock, which the SDK corrects
		}
		return "check the secret key and the region in Options.Config"
	case "InvalidClientTokenId":
		return "the service does not know the access key: check the credentials and the region in Options.Config"
	case "MissingAuthenticationToken":
		return "the requests are not signed: set Options.Config.Credentials"
	}
	return ""
}

// codeOf returns the code of err in one spelling, by its type where it has one
// as the codes differ between servers, and the message of the service.
func codeOf(err error) (code, message string) {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		// A proxy, or a server that says it in a language of its own.
		if answer, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && answer.HTTPStatusCode() == http.StatusForbidden {
			return "AccessDenied", ""
		}
		return "", ""
	}
	return cmp.Or(typeOf(api), plainCode(api.ErrorCode())), api.ErrorMessage()
}

func typeOf(err smithy.APIError) string {
	switch err.(type) {
	case *types.QueueDoesNotExist:
		return "QueueDoesNotExist"
	case *types.QueueNameExists:
		return "QueueNameExists"
	case *types.ReceiptHandleIsInvalid:
		return "ReceiptHandleIsInvalid"
	case *types.MessageNotInflight:
		return "MessageNotInflight"
	case *types.InvalidIdFormat:
		return "InvalidIdFormat"
	case *types.InvalidMessageContents:
		return "InvalidMessageContents"
	case *types.BatchRequestTooLong:
		return "BatchRequestTooLong"
	case *types.InvalidAttributeName:
		return "InvalidAttributeName"
	case *types.InvalidAttributeValue:
		return "InvalidAttributeValue"
	case *types.InvalidAddress:
		return "InvalidAddress"
	case *types.InvalidSecurity:
		return "InvalidSecurity"
	case *types.OverLimit:
		return "OverLimit"
	case *types.UnsupportedOperation:
		return "UnsupportedOperation"
	case *types.KmsAccessDenied:
		return "KmsAccessDenied"
	case *types.KmsDisabled:
		return "KmsDisabled"
	case *types.KmsInvalidState:
		return "KmsInvalidState"
	case *types.KmsInvalidKeyUsage:
		return "KmsInvalidKeyUsage"
	case *types.KmsNotFound:
		return "KmsNotFound"
	case *types.KmsOptInRequired:
		return "KmsOptInRequired"
	}
	return ""
}

// plainCode turns the spellings of the two protocols into one:
// AWS.SimpleQueueService.NonExistentQueue and
// com.amazonaws.sqs#QueueDoesNotExist are the same.
func plainCode(code string) string {
	code = code[strings.LastIndexByte(code, '#')+1:]
	code = strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	if kms, ok := strings.CutPrefix(code, "KMS."); ok {
		switch kms = strings.TrimSuffix(kms, "Exception"); kms {
		case "AccessDenied", "Disabled", "InvalidState", "InvalidKeyUsage", "NotFound", "Throttling":
			return "Kms" + kms
		case "OptInRequired", "SubscriptionRequired":
			return "KmsOptInRequired"
		}
	}
	code = strings.TrimSuffix(code, "Exception")
	switch code {
	case "NonExistentQueue":
		return "QueueDoesNotExist"
	case "QueueAlreadyExists":
		return "QueueNameExists"
	case "AuthorizationError", "NotAuthorized", "UnauthorizedOperation":
		return "AccessDenied"
	case "InvalidSignature", "IncompleteSignature":
		return "SignatureDoesNotMatch"
	case "UnrecognizedClient", "InvalidAccessKeyId", "AuthFailure":
		return "InvalidClientTokenId"
	}
	return code
}
