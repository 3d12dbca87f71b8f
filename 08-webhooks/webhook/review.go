package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// maxBody limits a request. The API server accepts objects of at most 3 MiB
// (MaxRequestBodyBytes in k8s.io/apiserver), and sends the old and the new one.
const maxBody = 7 << 20

// A decide function answers one question of the API server. An error that is an API status
// is the answer "no" with that reason; any other error is a failure of this server, after
// which the webhook's failurePolicy decides.
type decide func(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)

// handler serves a decide function under a path of its own.
func (d decider) handler() http.Handler {
	mux := http.NewServeMux()
	for path, f := range map[string]decide{
		"/validate-icecream": d.validateIcecream,
		"/mutate-icecream":   d.mutateIcecream,
		"/validate-policy":   d.validatePolicy,
		"/mutate-policy":     d.mutatePolicy,
	} {
		mux.Handle("POST "+path, review(f))
	}
	mux.HandleFunc("POST /convert-icecream", convert)
	return mux
}

// review speaks the protocol of admission.k8s.io/v1: an AdmissionReview with a request comes
// in, and one with a response of the same UID goes out.
func review(f decide) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked admissionv1.AdmissionReview
		if !read(w, r, maxBody, &asked) {
			return
		}
		if asked.APIVersion != admissionv1.SchemeGroupVersion.String() || asked.Kind != "AdmissionReview" {
			http.Error(w, fmt.Sprintf("%s %s is not understood, only %s AdmissionReview", asked.APIVersion, asked.Kind, admissionv1.SchemeGroupVersion), http.StatusBadRequest)
			return
		}
		if asked.Request == nil || asked.Request.UID == "" {
			http.Error(w, "there is no request with a UID in it", http.StatusBadRequest)
			return
		}

		response, err := f(r.Context(), asked.Request)
		if err != nil {
			var refusal apierrors.APIStatus
			if !errors.As(err, &refusal) {
				klog.FromContext(r.Context()).Error(err, "Not answered", "request", asked.Request.UID, "path", r.URL.Path)
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			status := refusal.Status()
			response = &admissionv1.AdmissionResponse{Result: &status}
		}
		response.UID = asked.Request.UID
		write(w, r, admissionv1.AdmissionReview{TypeMeta: asked.TypeMeta, Response: response})
	})
}

// read decodes a request of the API server, or refuses it and returns false.
func read(w http.ResponseWriter, r *http.Request, limit int64, into any) bool {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		http.Error(w, "the Content-Type has to be application/json", http.StatusUnsupportedMediaType)
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("the body is larger than %d bytes", limit), http.StatusRequestEntityTooLarge)
		return false
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}

// write encodes an answer.
func write(w http.ResponseWriter, r *http.Request, answer any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		klog.FromContext(r.Context()).V(2).Info("The answer was not read", "err", err) // the API server has stopped waiting
	}
}

// allowed is the answer "yes", with a change of the object if there is one.
func allowed(patch ...operation) (*admissionv1.AdmissionResponse, error) {
	response := &admissionv1.AdmissionResponse{Allowed: true}
	if len(patch) == 0 {
		return response, nil
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	kind := admissionv1.PatchTypeJSONPatch // the only one that there is
	response.Patch, response.PatchType = data, &kind
	return response, nil
}

// An operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}
