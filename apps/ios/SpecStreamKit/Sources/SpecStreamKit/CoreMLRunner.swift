#if canImport(CoreML)
import CoreML
import Foundation

/// Calls a package's functions through Core ML: one model for each, all on one state.
public final class CoreMLRunner: StepRunner {
    public let facts: PackageFacts
    private let package: URL
    private let computeUnits: MLComputeUnits
    private var models: [String: MLModel] = [:]
    private let state: MLState

    /// - Parameters:
    ///   - package: the compiled package, which Xcode calls `.mlmodelc`.
    ///   - computeUnits: what may compute; the layout of the program is the GPU's.
    public init(package: URL, computeUnits: MLComputeUnits = .cpuAndGPU) throws {
        (self.package, self.computeUnits) = (package, computeUnits)
        let configuration = MLModelConfiguration()
        configuration.computeUnits = computeUnits
        let model = try MLModel(contentsOf: package, configuration: configuration)  // the first function
        let metadata = model.modelDescription.metadata[.creatorDefinedKey] as? [String: String]
        guard let json = metadata?["specstream"] else { throw SpecStreamError.noFacts }
        facts = try PackageFacts(json: json)
        state = model.makeState()
    }

    public func call(_ function: String, _ inputs: [String: Tensor]) throws -> [String: Tensor] {
        let model = try model(function)
        let features = try MLDictionaryFeatureProvider(dictionary: inputs.mapValues(Self.feature))
        // `draft` has no state.
        let found = model.modelDescription.stateDescriptionsByName.isEmpty
            ? try model.prediction(from: features)
            : try model.prediction(from: features, using: state)
        var outputs: [String: Tensor] = [:]
        for name in found.featureNames {
            outputs[name] = found.featureValue(for: name)?.multiArrayValue.map(Self.tensor)
        }
        return outputs
    }

    /// Loads a function, which may take seconds the first time.
    @discardableResult
    public func model(_ function: String) throws -> MLModel {
        if let model = models[function] { return model }
        let configuration = MLModelConfiguration()
        configuration.computeUnits = computeUnits
        configuration.functionName = function
        let model = try MLModel(contentsOf: package, configuration: configuration)
        models[function] = model
        return model
    }

    private static func feature(_ tensor: Tensor) -> MLFeatureValue {
        tensor.floats.isEmpty
            ? MLFeatureValue(shapedArray: MLShapedArray(scalars: tensor.ints, shape: tensor.shape))
            : MLFeatureValue(shapedArray: MLShapedArray(scalars: tensor.floats, shape: tensor.shape))
    }

    private static func tensor(_ array: MLMultiArray) -> Tensor {
        let shape = array.shape.map(\.intValue)
        return array.dataType == .int32
            ? Tensor(MLShapedArray<Int32>(array).scalars, shape: shape)
            : Tensor(MLShapedArray<Float>(converting: array).scalars, shape: shape)
    }
}
#endif
