// Runs ollama's Go client against a server and says what it understood.
//
//	ollama_go URL               checks; prints one line per check
//	ollama_go URL -record FILE  also writes what the client sent, and what its structs kept of the
//	                            answers, for the test that needs no Go
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/ollama/ollama/api"
)

const model = "demo"

// What the client sent, and the fields that it kept of the answer's last object.
type exchange struct {
	Name    string            `json:"name"`
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body,omitempty"`
	Status  int               `json:"status"`
	Answer  string            `json:"answer,omitempty"` // the name of its struct
	Kept    []string          `json:"kept,omitempty"`   // paths of fields that are not empty
}

type recorder struct {
	exchanges []*exchange
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	one := &exchange{Method: request.Method, Path: request.URL.Path, Headers: map[string]string{}}
	for _, name := range []string{"Content-Type", "Accept"} {
		one.Headers[name] = request.Header.Get(name)
	}
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		if len(body) > 0 {
			one.Body = body
		}
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err == nil {
		one.Status = response.StatusCode
	}
	r.exchanges = append(r.exchanges, one)
	return response, err
}

// The paths of the fields of a struct that are not empty, by their JSON names.
func kept(prefix string, value reflect.Value, paths *[]string) {
	if value.Type() == reflect.TypeOf(time.Time{}) || value.Kind() != reflect.Struct {
		if !value.IsZero() {
			*paths = append(*paths, prefix)
		}
		return
	}
	for i := 0; i < value.NumField(); i++ {
		field := value.Type().Field(i)
		name := strings.Split(field.Tag.Get("json"), ",")[0]
		switch {
		case !field.IsExported():
		case field.Anonymous:
			kept(prefix, value.Field(i), paths)
		case prefix == "":
			kept(name, value.Field(i), paths)
		default:
			kept(prefix+"."+name, value.Field(i), paths)
		}
	}
}

// What Go's decoder takes for a type.
func jsonType(t reflect.Type) any {
	switch {
	case t == reflect.TypeOf(time.Time{}):
		return "time"
	case t.Kind() == reflect.Pointer:
		return jsonType(t.Elem())
	case t == reflect.TypeOf(api.ToolCallFunctionArguments{}), t.Kind() == reflect.Map:
		return "object"
	case t.Kind() == reflect.Struct:
		fields := map[string]any{}
		for i := 0; i < t.NumField(); i++ {
			field := t.Field(i)
			if !field.IsExported() {
				continue
			}
			inner := jsonType(field.Type)
			if field.Anonymous {
				for name, one := range inner.(map[string]any) {
					fields[name] = one
				}
			} else if name := strings.Split(field.Tag.Get("json"), ",")[0]; name != "-" {
				fields[name] = inner
			}
		}
		return fields
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "string"
	case t.Kind() == reflect.Slice:
		return []any{jsonType(t.Elem())}
	case t.Kind() == reflect.String:
		return "string"
	case t.Kind() == reflect.Bool:
		return "bool"
	case t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Interface:
		return "any"
	default:
		return "integer"
	}
}

type run struct {
	client  *api.Client
	record  *recorder
	context context.Context
	failed  bool
}

// Runs one call of the client and notes what its answer, a struct or nil, has kept.
func (r *run) check(name string, call func() (any, error)) {
	before := len(r.record.exchanges)
	answer, err := call()
	for _, one := range r.record.exchanges[before:] {
		one.Name = name
		if answer != nil {
			value := reflect.Indirect(reflect.ValueOf(answer))
			one.Answer = value.Type().Name()
			kept("", value, &one.Kept)
			sort.Strings(one.Kept)
		}
	}
	if err != nil {
		r.failed = true
		fmt.Printf("failed: %s: %v\n", name, err)
	} else {
		fmt.Printf("ok: %s\n", name)
	}
}

func expect(holds bool, format string, arguments ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, arguments...)
}

func yes() *bool { value := true; return &value }
func no() *bool  { value := false; return &value }

var question = []api.Message{{Role: "user", Content: "Tell me about the sea."}}

func options(more map[string]any) map[string]any {
	all := map[string]any{"temperature": 0.0, "num_predict": 8.0}
	for name, value := range more {
		all[name] = value
	}
	return all
}

// The last answer, and the text of all.
func (r *run) chat(request *api.ChatRequest) (api.ChatResponse, string, error) {
	var last api.ChatResponse
	var text strings.Builder
	request.Model = model
	err := r.client.Chat(r.context, request, func(part api.ChatResponse) error {
		text.WriteString(part.Message.Content)
		last = part
		return nil
	})
	return last, text.String(), err
}

func (r *run) generate(request *api.GenerateRequest) (api.GenerateResponse, string, error) {
	var last api.GenerateResponse
	var text strings.Builder
	request.Model = model
	err := r.client.Generate(r.context, request, func(part api.GenerateResponse) error {
		text.WriteString(part.Response)
		last = part
		return nil
	})
	return last, text.String(), err
}

func checkMetrics(m api.Metrics, count int) error {
	sum := m.LoadDuration + m.PromptEvalDuration + m.EvalDuration
	return errors.Join(
		expect(m.EvalCount == count, "eval_count is %d", m.EvalCount),
		expect(m.PromptEvalCount > 0, "no prompt_eval_count"),
		expect(m.PromptEvalDuration > 0 && m.EvalDuration > 0, "no durations: %+v", m),
		expect(sum <= m.TotalDuration+time.Microsecond, "%v is more than %v", sum, m.TotalDuration))
}

func (r *run) describe() {
	r.check("heartbeat", func() (any, error) { return nil, r.client.Heartbeat(r.context) })
	r.check("version", func() (any, error) {
		version, err := r.client.Version(r.context)
		return nil, errors.Join(err, expect(version != "", "no version"))
	})
	r.check("list", func() (any, error) {
		list, err := r.client.List(r.context)
		if err != nil {
			return nil, err
		}
		one := list.Models[0]
		return &one, errors.Join(expect(one.Model == model, "%q", one.Model),
			expect(len(one.Digest) == 64, "digest %q", one.Digest),
			expect(time.Since(one.ModifiedAt) < time.Hour, "%v", one.ModifiedAt))
	})
	r.check("list running", func() (any, error) {
		list, err := r.client.ListRunning(r.context)
		if err != nil {
			return nil, err
		}
		one := list.Models[0]
		return &one, expect(one.ExpiresAt.After(time.Now()), "%v", one.ExpiresAt)
	})
	r.check("show", func() (any, error) {
		shown, err := r.client.Show(r.context, &api.ShowRequest{Model: model})
		if err != nil {
			return nil, err
		}
		return shown, expect(len(shown.Capabilities) > 0 && shown.Template != "", "%+v", shown)
	})
}

func (r *run) answers() {
	r.check("chat", func() (any, error) {
		last, _, err := r.chat(&api.ChatRequest{Messages: question, Options: options(nil), Stream: no()})
		return &last, errors.Join(err, expect(last.Done && last.DoneReason == "length", "%+v", last),
			checkMetrics(last.Metrics, 8))
	})
	r.check("chat, streamed", func() (any, error) {
		last, streamed, err := r.chat(&api.ChatRequest{Messages: question, Options: options(nil)})
		if err != nil {
			return nil, err
		}
		return &last, errors.Join(expect(streamed != "", "no text"), checkMetrics(last.Metrics, 8))
	})
	r.check("chat, continued", func() (any, error) {
		arguments := api.NewToolCallFunctionArguments()
		arguments.Set("place", "harbour")
		call := api.ToolCall{ID: "c1", Function: api.ToolCallFunction{Name: "look", Arguments: arguments}}
		last, _, err := r.chat(&api.ChatRequest{Options: options(nil), Stream: no(), Messages: append(
			question, api.Message{Role: "assistant", Thinking: "A ship?", ToolCalls: []api.ToolCall{call}},
			api.Message{Role: "tool", Content: "a ship", ToolName: "look", ToolCallID: "c1"})})
		return &last, err
	})
	r.check("chat, with a format", func() (any, error) {
		last, text, err := r.chat(&api.ChatRequest{Messages: question, Stream: no(),
			Options: options(map[string]any{"num_predict": 40}),
			Format:  json.RawMessage(`{"enum": ["port", "market"]}`)})
		return &last, errors.Join(err, expect(text == `"port"` || text == `"market"`, "%s", text))
	})
	r.check("chat, with log-probabilities", func() (any, error) {
		last, _, err := r.chat(&api.ChatRequest{Messages: question, Options: options(nil), Stream: no(),
			Logprobs: true, TopLogprobs: 2})
		return &last, errors.Join(err, expect(len(last.Logprobs) == 8 &&
			len(last.Logprobs[0].TopLogprobs) == 2 && last.Logprobs[0].Logprob < 0, "%+v", last.Logprobs))
	})
	r.check("chat, without thinking", func() (any, error) {
		last, _, err := r.chat(&api.ChatRequest{Messages: question, Options: options(nil), Stream: no(),
			Think: &api.ThinkValue{Value: false}, Truncate: yes(), Shift: no()})
		return &last, err
	})
	r.check("generate", func() (any, error) {
		last, text, err := r.generate(&api.GenerateRequest{Prompt: "The sea", System: "Be brief.",
			Options: options(map[string]any{"seed": 42.0, "top_k": 40.0, "stop": []string{"zzz"}})})
		return &last, errors.Join(err, expect(text != "", "no text"), checkMetrics(last.Metrics, 8))
	})
	r.check("load", func() (any, error) {
		last, _, err := r.generate(&api.GenerateRequest{KeepAlive: &api.Duration{Duration: time.Minute}})
		return &last, errors.Join(err, expect(last.DoneReason == "load", "%q", last.DoneReason))
	})
	r.check("unload", func() (any, error) {
		last, _, err := r.chat(&api.ChatRequest{KeepAlive: &api.Duration{}})
		return &last, errors.Join(err, expect(last.DoneReason == "unload", "%q", last.DoneReason))
	})
	r.check("embed", func() (any, error) {
		made, err := r.client.Embed(r.context, &api.EmbedRequest{Model: model, Input: []string{"a", "b"}})
		if err != nil {
			return nil, err
		}
		return made, expect(len(made.Embeddings) == 2, "%d vectors", len(made.Embeddings))
	})
	r.check("embeddings", func() (any, error) {
		made, err := r.client.Embeddings(r.context, &api.EmbeddingRequest{Model: model, Prompt: "a"})
		return made, err
	})
}

// The status and the text of an error, as the client decodes them.
func refused(err error, status int, text string) error {
	var refusal api.StatusError
	return errors.Join(expect(errors.As(err, &refusal), "%v", err),
		expect(refusal.StatusCode == status && strings.Contains(refusal.ErrorMessage, text), "%v", err))
}

func (r *run) failures() {
	r.check("an option of the wrong kind", func() (any, error) {
		_, _, err := r.generate(&api.GenerateRequest{Prompt: "x", Options: map[string]any{"num_predict": 2.5}})
		return nil, refused(err, 400, "options.num_predict must be an integer")
	})
	r.check("an unknown model", func() (any, error) {
		_, err := r.client.Show(r.context, &api.ShowRequest{Model: "other"})
		return nil, refused(err, 404, "other")
	})
	r.check("pull", func() (any, error) {
		err := r.client.Pull(r.context, &api.PullRequest{Model: "other"},
			func(api.ProgressResponse) error { return nil })
		return nil, refused(err, 501, "/api/pull is not supported")
	})
	r.check("delete", func() (any, error) {
		err := r.client.Delete(r.context, &api.DeleteRequest{Model: model})
		return nil, refused(err, 501, "/api/delete is not supported")
	})
}

func (r *run) write(file string) error {
	types := map[string]any{}
	for _, one := range []any{api.ChatResponse{}, api.GenerateResponse{}, api.EmbedResponse{},
		api.EmbeddingResponse{}, api.ShowResponse{}, api.ListModelResponse{}, api.ProcessModelResponse{}} {
		types[reflect.TypeOf(one).Name()] = jsonType(reflect.TypeOf(one))
	}
	text, err := json.MarshalIndent(map[string]any{"types": types, "exchanges": r.record.exchanges}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func main() {
	if len(os.Args) != 2 && (len(os.Args) != 4 || os.Args[2] != "-record") {
		fmt.Fprintln(os.Stderr, "usage: ollama_go URL [-record FILE]")
		os.Exit(2)
	}
	base, err := url.Parse(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	record := &recorder{}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := &run{client: api.NewClient(base, &http.Client{Transport: record}), record: record, context: ctx}
	r.describe()
	r.answers()
	r.failures()
	if len(os.Args) == 4 && !r.failed {
		if err := r.write(os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if r.failed {
		os.Exit(1)
	}
}
