/// Integers or floats in row-major order.
public struct Tensor: Equatable, Sendable {
    public let shape: [Int]
    /// Empty where the scalars are floats.
    public let ints: [Int32]
    /// Empty where the scalars are integers.
    public let floats: [Float]

    public init(_ ints: [Int32], shape: [Int]? = nil) {
        (self.shape, self.ints, floats) = (shape ?? [ints.count], ints, [])
    }

    public init(_ floats: [Float], shape: [Int]) {
        (self.shape, ints, self.floats) = (shape, [], floats)
    }

    /// The floats of one row of the first axis.
    func row(_ index: Int) -> ArraySlice<Float> {
        let size = floats.count / shape[0]
        return floats[index * size..<(index + 1) * size]
    }
}

/// What calls the functions of a package, all of which share its two caches.
public protocol StepRunner {
    /// Calls a function.
    ///
    /// - Parameters:
    ///   - function: its name in the package, the adapter's at the beginning.
    ///   - inputs: by name, in the shapes that the function declares.
    /// - Returns: its outputs by name.
    func call(_ function: String, _ inputs: [String: Tensor]) throws -> [String: Tensor]
}
