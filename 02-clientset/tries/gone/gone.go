package main

import apierrors "k8s.io/apimachinery/pkg/api/errors"

// unlessGone returns the error, or nil if the object does not exist.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
