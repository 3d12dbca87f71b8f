package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/08-webhooks/conversion"
)

// convert speaks the protocol of conversion webhooks, apiextensions.k8s.io/v1: a
// ConversionReview with objects and the version wanted comes in, and one with as many
// objects of that version, in the same order, goes out. The API server sends one object at a
// time, also for a list, because it converts each one when it decodes it (GetList in
// k8s.io/apiserver/pkg/storage/etcd3), so the limit is that of one object.
func convert(w http.ResponseWriter, r *http.Request) {
	var asked apiextensionsv1.ConversionReview
	if !read(w, r, maxBody, &asked) {
		return
	}
	if asked.APIVersion != apiextensionsv1.SchemeGroupVersion.String() || asked.Kind != "ConversionReview" || asked.Request == nil || asked.Request.UID == "" {
		http.Error(w, fmt.Sprintf("%s %s without a request is not understood, only %s ConversionReview with one", asked.APIVersion, asked.Kind, apiextensionsv1.SchemeGroupVersion), http.StatusBadRequest)
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: asked.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for i, raw := range asked.Request.Objects {
		object := &unstructured.Unstructured{}
		err := json.Unmarshal(raw.Raw, object)
		if err == nil {
			err = conversion.Convert(object, asked.Request.DesiredAPIVersion)
		}
		if err != nil {
			// The API server wants all of them or none.
			klog.FromContext(r.Context()).Error(err, "Not converted", "request", asked.Request.UID, "object", klog.KObj(object))
			response.ConvertedObjects = nil
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: fmt.Sprintf("object %d, %s/%s: %v", i, object.GetNamespace(), object.GetName(), err)}
			break
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: object})
	}
	write(w, r, apiextensionsv1.ConversionReview{TypeMeta: asked.TypeMeta, Response: response})
}
