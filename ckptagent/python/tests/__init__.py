"""Tests of the Python side: python3 -m unittest discover -s ckptagent/python/tests -t ckptagent/python"""
