// Package s3bodies keeps the large bodies of tasks in S3, or in a store that speaks its
// protocol.
package s3bodies

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/redrive-go/redrive/operate/service/bodies"
	"github.com/redrive-go/redrive/operate/service/bodies/internal/sweep"
)

// Bucket keeps bodies as objects. A body is in PREFIX/TENANT/SUM/RANDOM: each Put and
// Keep makes an object of its own, so that a sweep which takes an older one away takes
// nothing from them. Who may write there can put PREFIX/TENANT/SUM/ANYTHING, and name
// TENANT/SUM in a task. Whoever shares bucket and prefix shares the tasks, too: Sweep
// deletes what its caller does not need.
type Bucket struct {
	Client *s3.Client
	Name   string
	Prefix string // without a slash at its end; empty for none
}

var _ bodies.Store = (*Bucket)(nil)

// key is what the keys of all objects of a body begin with.
func (b *Bucket) key(ref string) string { return b.root() + ref + "/" }

func (b *Bucket) root() string {
	if b.Prefix == "" {
		return ""
	}
	return b.Prefix + "/"
}

// Put implements [bodies.Store]. It holds the whole body in memory.
func (b *Bucket) Put(ctx context.Context, tenant string, body io.Reader) (ref string, err error) {
	all, err := io.ReadAll(body)
	if err != nil {
		return "", fmt.Errorf("a body cannot be kept: %w", err)
	}
	sum := sha256.New()
	sum.Write(all)
	ref = bodies.Ref(tenant, sum)
	_, err = b.Client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.Name, Key: aws.String(b.key(ref) + rand.Text()), Body: bytes.NewReader(all)})
	if err != nil {
		return "", fmt.Errorf("a body cannot be kept in bucket %s: %w", b.Name, err)
	}
	return ref, nil
}

// Keep implements [bodies.Store].
func (b *Bucket) Keep(ctx context.Context, ref string) error {
	return b.first(ctx, ref, func(key string, _ int64) error {
		source := strings.ReplaceAll((&url.URL{Path: b.Name + "/" + key}).EscapedPath(), "+", "%2B") // or it is read as a space
		_, err := b.Client.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &b.Name, CopySource: &source, Key: aws.String(b.key(ref) + rand.Text())})
		return err
	})
}

// Open implements [bodies.Store].
func (b *Bucket) Open(ctx context.Context, ref string) (body io.ReadCloser, size int64, err error) {
	reading, cut := context.WithCancel(context.WithoutCancel(ctx))
	opened := context.AfterFunc(ctx, cut)
	err = b.first(reading, ref, func(key string, n int64) error {
		out, err := b.Client.GetObject(reading, &s3.GetObjectInput{Bucket: &b.Name, Key: &key})
		if err == nil {
			body, size = &stream{out.Body, cut}, n
		}
		return err
	})
	if !opened() {
		if body != nil {
			_ = body.Close()
		}
		err = fmt.Errorf("bucket %s does not answer in time: %w", b.Name, ctx.Err())
	}
	if err != nil {
		cut()
		return nil, 0, err
	}
	return body, size, nil
}

// stream is a body that ends the context of its request when it is closed.
type stream struct {
	io.ReadCloser
	cut context.CancelFunc
}

func (s *stream) Close() error {
	s.cut() // what is left is not read
	return s.ReadCloser.Close()
}

// noSuchKey is the code of an object that is gone. Copies have no type for it.
const noSuchKey = "NoSuchKey"

// mostGone is how many objects may be gone in a row, once they were listed.
const mostGone = 10

// first does something with an object of a body: with another one, if a sweep was
// quicker, as long as there are any.
func (b *Bucket) first(ctx context.Context, ref string, do func(key string, size int64) error) error {
	if _, _, err := bodies.Split(ref); err != nil {
		return err
	}
	for gone := 1; ; gone++ {
		page, err := b.Client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.Name, Prefix: aws.String(b.key(ref)), MaxKeys: aws.Int32(1)})
		if err != nil {
			return fmt.Errorf("bucket %s cannot be read: %w", b.Name, err)
		}
		if len(page.Contents) == 0 {
			return fmt.Errorf("%w: %s", bodies.ErrNotFound, ref)
		}
		object := page.Contents[0]
		if aws.ToInt64(object.Size) > bodies.MaxSize {
			return bodies.ErrTooLarge
		}
		err = do(aws.ToString(object.Key), aws.ToInt64(object.Size))
		if fault, ok := errors.AsType[smithy.APIError](err); ok && fault.ErrorCode() == noSuchKey && gone < mostGone {
			continue
		}
		if err != nil {
			return fmt.Errorf("body %s of bucket %s: %w", ref, b.Name, err)
		}
		return nil
	}
}

// Sweep implements [bodies.Store].
func (b *Bucket) Sweep(ctx context.Context, before time.Time, named bodies.Named) (deleted int, err error) {
	old := sweep.Old{Named: named, Delete: b.delete}
	pages := s3.NewListObjectsV2Paginator(b.Client, &s3.ListObjectsV2Input{Bucket: &b.Name, Prefix: aws.String(b.root())})
	for err == nil && pages.HasMorePages() {
		var page *s3.ListObjectsV2Output
		if page, err = pages.NextPage(ctx); err == nil {
			err = b.add(ctx, &old, page.Contents, before)
		}
	}
	if err == nil {
		err = old.Flush(ctx)
	}
	if err != nil {
		err = fmt.Errorf("bodies that no task names cannot be deleted from bucket %s: %w", b.Name, err)
	}
	return old.Deleted, err
}

// add takes those objects that are old and bodies; those of others are left alone.
func (b *Bucket) add(ctx context.Context, old *sweep.Old, objects []types.Object, before time.Time) error {
	for _, o := range objects {
		key := aws.ToString(o.Key)
		parts := strings.Split(strings.TrimPrefix(key, b.root()), "/")
		if len(parts) != 3 || !aws.ToTime(o.LastModified).Before(before) {
			continue
		}
		ref := parts[0] + "/" + parts[1]
		if _, _, err := bodies.Split(ref); err != nil {
			continue
		}
		if err := old.Add(ctx, ref, key); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bucket) delete(ctx context.Context, keys []string) error {
	for _, key := range keys { // one by one, which all servers can
		if _, err := b.Client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Name, Key: &key}); err != nil {
			return err
		}
	}
	return nil
}
