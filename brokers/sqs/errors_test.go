package sqs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/redrive-go/redrive/brokers"
)

func api(code string) error { return &smithy.GenericAPIError{Code: code, Message: "as you like it"} }

func invalid(message string) error {
	return &smithy.GenericAPIError{Code: "InvalidParameterValue", Message: message}
}

func status(code int, err error) error {
	return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: code}}, Err: err}
}

func TestExplainKinds(t *testing.T) {
	const legacy, shape = "AWS.SimpleQueueService.", "com.amazonaws.sqs#"
	overridden := "AWS.SimpleQueueService.NonExistentQueue"
	everywhere := []operation{receiving, removing, hiding, sending, resolving, inspecting, creating}
	settles := []operation{removing, hiding}
	sends := []operation{sending}
	gone := []error{&types.QueueDoesNotExist{}, &types.QueueDoesNotExist{ErrorCodeOverride: &overridden}, api(overridden), api(shape + "QueueDoesNotExist"), api("QueueDoesNotExist")}
	for _, test := range []struct {
		operations []operation
		want       error // nil is temporary
		errs       []error
	}{
		{[]operation{receiving, sending, resolving, inspecting, creating}, brokers.ErrNotFound, gone},
		{settles, brokers.ErrLeaseLost, gone}, // the message went with the queue
		{everywhere, brokers.ErrMisconfigured, []error{
			status(403, &smithy.DeserializationError{Err: errors.New("invalid character '<'")}), // a proxy
			api("AccessDenied"), api("AccessDeniedException"), &types.InvalidAddress{}, &types.InvalidSecurity{}, api("InvalidSecurity"), &types.UnsupportedOperation{},
			&types.KmsAccessDenied{}, &types.KmsDisabled{}, &types.KmsInvalidState{}, &types.KmsNotFound{}, &types.KmsOptInRequired{}, &types.KmsInvalidKeyUsage{},
			api("KMS.AccessDeniedException"), api("KMS.DisabledException"), api("KMS.InvalidStateException"), api("KMS.NotFoundException"), api("KMS.OptInRequired"),
			api("KmsAccessDenied"), api("KmsOptInRequired"),
			api("UnrecognizedClientException"), api("InvalidClientTokenId"), api("SignatureDoesNotMatch"), api("InvalidSignatureException"),
			api("MissingAuthenticationToken"), api("MissingAuthenticationTokenException"),
		}},
		{everywhere, nil, []error{
			&types.RequestThrottled{}, api("ThrottlingException"), &types.KmsThrottled{}, api("KMS.ThrottlingException"), &types.OverLimit{}, api("OverLimit"),
			api("ExpiredToken"), api("ExpiredTokenException"), errors.New("get identity: failed to refresh cached credentials"),
			&smithy.GenericAPIError{Code: "InvalidSignatureException", Message: "Signature expired: 20260101T000000Z is now earlier than 20260101T000500Z"},
			status(429, api("TooManyRequestsException")),
		}},
		{settles, brokers.ErrLeaseLost, []error{
			&types.ReceiptHandleIsInvalid{}, api("ReceiptHandleIsInvalid"), api(shape + "ReceiptHandleIsInvalid"), &types.MessageNotInflight{},
			api(legacy + "MessageNotInflight"), &types.InvalidIdFormat{},
			invalid("Value abc for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."),
			invalid("Value abc for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change."),
		}},
		{settles, errPastTotal, []error{
			invalid("Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"),
			status(400, invalid("Reason: Total visibility timeout for the message is beyond the limit [43200 seconds].")),
		}},
		{settles, nil, []error{
			invalid("Value 43201 for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200, if provided."),
			status(500, api("InternalFailure")), &smithyhttp.RequestSendError{Err: io.EOF}, context.DeadlineExceeded, api("InternalError"),
		}},
		{sends, brokers.ErrRefused, []error{
			&types.InvalidMessageContents{}, api("InvalidMessageContents"), &types.BatchRequestTooLong{}, api(legacy + "BatchRequestTooLong"),
			invalid("One or more parameters cannot be validated. Reason: Message must be shorter than 1048576 bytes."), api("MissingParameter"),
			&types.InvalidAttributeValue{}, status(400, invalid("The attribute is bad")),
		}},
		{sends, brokers.ErrUnknownOutcome, []error{
			status(500, api("InternalFailure")), status(503, &smithy.DeserializationError{Err: errors.New("<html>")}), status(200, &smithy.DeserializationError{Err: io.ErrUnexpectedEOF}),
			&smithyhttp.RequestSendError{Err: io.EOF}, context.DeadlineExceeded, &smithy.CanceledError{Err: context.Canceled}, api("InternalError"), api("ServiceUnavailable"),
		}},
		{[]operation{resolving, creating}, brokers.ErrMisconfigured, []error{invalid("Can only include alphanumeric characters, hyphens, or underscores."), &types.InvalidAttributeName{}}},
		{[]operation{receiving, resolving}, nil, []error{status(500, api("InternalFailure")), context.DeadlineExceeded, &smithyhttp.RequestSendError{Err: io.EOF}}},
		{[]operation{receiving, sending}, nil, []error{&types.MessageNotInflight{}}},
	} {
		for _, o := range test.operations {
			for _, err := range test.errs {
				got := explain(&smithy.OperationError{ServiceID: "SQS", OperationName: "Any", Err: err}, o, "orders")
				for _, kind := range []error{brokers.ErrMisconfigured, brokers.ErrLeaseLost, brokers.ErrRefused, brokers.ErrUnknownOutcome, errPastTotal, brokers.ErrNotFound} {
					if errors.Is(got, kind) != (test.want != nil && errors.Is(test.want, kind)) {
						t.Errorf("operation %d, %T %v: %v\nis %q: %t", o, err, err, got, kind, errors.Is(got, kind))
					}
				}
				if !errors.Is(got, err) || !strings.Contains(got.Error(), `"orders"`) {
					t.Errorf("operation %d: the error does not lead to its cause or name the queue: %v", o, got)
				}
			}
		}
	}
}

func TestExplainWords(t *testing.T) {
	for _, test := range []struct {
		err  error
		o    operation
		want string
	}{
		{api("AccessDenied"), receiving, `receive from the queue "orders": ` + brokers.ErrMisconfigured.Error() +
			`: grant the identity sqs:ReceiveMessage, DeleteMessage, ChangeMessageVisibility, SendMessage, GetQueueUrl and GetQueueAttributes on the queue and on its dead-letter queue: api error AccessDenied: as you like it`},
		{api("ThrottlingException"), removing, `delete from the queue "orders": api error ThrottlingException: as you like it; the messages come back when their visibility timeouts end`},
		{api("ReceiptHandleIsInvalid"), hiding, `change visibility timeouts in the queue "orders": ` + brokers.ErrLeaseLost.Error() + `: api error ReceiptHandleIsInvalid: as you like it`},
		{api("ThrottlingException"), sending, `send to the queue "orders": api error ThrottlingException: as you like it; keep the originals`},
		{api("ThrottlingException"), inspecting, `read the attributes of the queue "orders": api error ThrottlingException: as you like it`},
	} {
		if got := explain(test.err, test.o, "orders").Error(); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
	if explain(nil, sending, "orders") != nil {
		t.Error("success is explained")
	}
}
