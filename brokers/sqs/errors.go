package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/redrive-go/redrive/brokers"
)

// errPastTotal reports a visibility timeout that would exceed the 12 h that a
// message can be in flight: nothing was changed.
var errPastTotal = errors.New("SQS keeps a message in flight for 12 h at most, from its receive on")

// errGone reports a settlement in a queue that does not exist any more.
var errGone = fmt.Errorf("%w: the queue does not exist any more, and the message went with it", brokers.ErrLeaseLost)

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

// operations say it, and what becomes of the messages if it fails, if it is about any.
var operations = [...]struct{ doing, aftermath string }{
	receiving:  {"receive from", "what the service may have handed out comes back when its visibility timeout ends"},
	removing:   {"delete from", "the messages come back when their visibility timeouts end"},
	hiding:     {"change visibility timeouts in", "the old ones stay in force, unless the answer got lost"},
	sending:    {"send to", "keep the originals"},
	resolving:  {doing: "look up"},
	inspecting: {doing: "read the attributes of"},
	creating:   {doing: "create"},
}

func (o operation) settles() bool { return o == removing || o == hiding }

// explain turns err, which ended o, into one that says which queue it is about,
// what it means and how to cure it. What is nobody's fault stays temporary: it
// has no kind.
func explain(err error, o operation, queue string) error {
	if err == nil {
		return nil
	}
	doing := fmt.Sprintf("%s the queue %q", operations[o].doing, queue)
	fix, kind := judge(err, o)
	switch {
	case kind == nil && operations[o].aftermath != "":
		return fmt.Errorf("%s: %w; %s", doing, err, operations[o].aftermath)
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
func isBad(code string) bool { return slices.Contains(badCodes, code) }

var badCodes = []string{
	"InvalidMessageContents", "BatchRequestTooLong", "InvalidParameterValue", "MissingParameter", "InvalidAttributeName",
	"InvalidAttributeValue", "InvalidParameterCombination", "ValidationError", "ValidationException",
}

// openCodes are of errors after which the service does not know itself whether it
// has stored what was sent.
var openCodes = []string{"InternalFailure", "InternalError", "InternalServerError", "ServiceUnavailable", "RequestTimeout"}

// isOpen reports whether a send that failed with err may have been done: the
// answer got lost, or the service does not know itself.
func isOpen(err error, code string) bool {
	_, unanswered := errors.AsType[*smithyhttp.RequestSendError](err)
	_, canceled := errors.AsType[*smithy.CanceledError](err)
	over := canceled || err == errSilent || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if unanswered || over || slices.Contains(openCodes, code) {
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

// hasCode reports whether err has a code, in any spelling.
func hasCode(err error, code string) bool {
	has, _ := codeOf(err)
	return has == code
}

// isGone reports whether err says that there is no such queue.
func isGone(err error) bool { return hasCode(err, "QueueDoesNotExist") }

// isDenied reports whether err is a matter of rights.
func isDenied(err error) bool { return hasCode(err, "AccessDenied") }

// isOfIdentity reports whether err is about the credentials of the worker, and so
// about all queues.
func isOfIdentity(err error) bool {
	switch code, message := codeOf(err); code {
	case "InvalidSecurity", "SignatureDoesNotMatch", "InvalidClientTokenId", "MissingAuthenticationToken":
		return fixOf(code, message) != ""
	}
	return false
}

// fixes say what an operator can do, where nobody else can do anything.
var fixes = map[string]string{
	"QueueDoesNotExist": noQueue,
	"InvalidAddress":    noQueue,
	"AccessDenied":      "grant the identity sqs:ReceiveMessage, DeleteMessage, ChangeMessageVisibility, SendMessage, GetQueueUrl and GetQueueAttributes on the queue and on its dead-letter queue",
	"KmsAccessDenied":   "grant the identity kms:Decrypt and kms:GenerateDataKey on the key of the queue",

	"KmsDisabled":        badKey,
	"KmsInvalidState":    badKey,
	"KmsNotFound":        badKey,
	"KmsOptInRequired":   badKey,
	"KmsInvalidKeyUsage": badKey,

	"InvalidSecurity":            "the queue wants HTTPS and a signature of version 4: check Options.Endpoint",
	"UnsupportedOperation":       "the service does not do this with a queue of this kind",
	"SignatureDoesNotMatch":      "check the secret key and the region in Options.Config",
	"InvalidClientTokenId":       "the service does not know the access key: check the credentials and the region in Options.Config",
	"MissingAuthenticationToken": "the requests are not signed: set Options.Config.Credentials",
}

const (
	noQueue = "create the queue, or correct its name, account or region; a queue of another account needs its URL, and its policy must let this one in"
	badKey  = "enable or restore the key that encrypts the queue, or give the queue another one"
)

func fixOf(code, message string) string {
	if code == "SignatureDoesNotMatch" && (strings.Contains(message, "expired") || strings.Contains(message, "not yet current")) {
		return "" // the clock, which the SDK corrects
	}
	return fixes[code]
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
	code, typed := strings.CutPrefix(fmt.Sprintf("%T", api), "*types.")
	if !typed {
		code = api.ErrorCode()
	}
	return plainCode(code), api.ErrorMessage()
}

// spellings are those of the two protocols that differ by more than what plainCode
// takes away, for one that it leaves.
var spellings = map[string]string{
	"NonExistentQueue":        "QueueDoesNotExist",
	"QueueAlreadyExists":      "QueueNameExists",
	"AuthorizationError":      "AccessDenied",
	"NotAuthorized":           "AccessDenied",
	"UnauthorizedOperation":   "AccessDenied",
	"InvalidSignature":        "SignatureDoesNotMatch",
	"IncompleteSignature":     "SignatureDoesNotMatch",
	"UnrecognizedClient":      "InvalidClientTokenId",
	"InvalidAccessKeyId":      "InvalidClientTokenId",
	"AuthFailure":             "InvalidClientTokenId",
	"KmsSubscriptionRequired": "KmsOptInRequired",
}

// plainCode turns the spellings of the two protocols into one:
// AWS.SimpleQueueService.NonExistentQueue and
// com.amazonaws.sqs#QueueDoesNotExist are the same.
func plainCode(code string) string {
	code = code[strings.LastIndexByte(code, '#')+1:]
	code = strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	code = strings.Replace(code, "KMS.", "Kms", 1)
	code = strings.TrimSuffix(code, "Exception")
	return cmp.Or(spellings[code], code)
}
