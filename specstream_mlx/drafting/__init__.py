"""Draft trees and who grows them."""
